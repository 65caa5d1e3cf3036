"""Agent Lightning's proxy and store; run with 0.3.0 (and litellm 1.108.7) on 2026-11-29."""

import asyncio
import os

from agentlightning import InMemoryLightningStore, LightningStoreServer, LLMProxy
from agentlightning.adapter import LlmProxyTraceToTriplet
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from join_calls import join_calls

KEY = os.environ["LITELLM_MASTER_KEY"] = "sk-referee-judges-this-proxy-0123456789"
os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = "http://127.0.0.1:9002/v1/traces"
STORE = LightningStoreServer(InMemoryLightningStore(), "127.0.0.1", 9002)
PLACE = {"launch_mode": "mp", "healthcheck_url": "/health/liveliness"}


async def start(engine, tokenizer):
    """Start the store, and the proxy in a process of its own."""
    params = {"model": "hosted_vllm/policy", "api_base": f"{engine}/v1", "api_key": "none"}
    models = [{"model_name": "policy", "litellm_params": params}]
    place = PythonServerLauncherArgs(9001, "127.0.0.1", **PLACE)
    await STORE.start()
    await LLMProxy(model_list=models, store=STORE, launcher_args=place).start()


async def open():
    """Begin a rollout, whose address has its id and its attempt's."""
    rollout = await STORE.start_rollout(input={})
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    url = "http://127.0.0.1:9001/rollout/{}/attempt/{}".format(*ids)
    return url, {"authorization": f"Bearer {KEY}"}, ids


async def finish(ids):
    """Return its triplets, joined where one goes on from another; they have no logprobs."""
    await asyncio.sleep(1)  # they are exported beside the answers
    triplets = LlmProxyTraceToTriplet().adapt(await STORE.query_spans(*ids))
    return join_calls((t.prompt["token_ids"], t.response["token_ids"], None) for t in triplets)

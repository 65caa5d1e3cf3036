"""A sketch for rLLM's model gateway at port 9001, Chat Completions alone; not run.

Started as `rllm-model-gateway --port 9001 --worker http://127.0.0.1:9000/v1`; the tokenizer's
directory needs a chat template. Read at rllm-org/rllm, rllm-model-gateway/README.md 39a9ce58.
"""

from join_calls import join_calls
from rllm_model_gateway import GatewayClient

GATEWAY = GatewayClient("http://127.0.0.1:9001")


def open():
    """Open a session, whose address has its id."""
    session = GATEWAY.create_session()
    return GATEWAY.get_session_url(session), {}, session


def finish(session):
    """Return its traces, joined where one goes on from another."""
    traces = GATEWAY.get_session_traces(session)
    return join_calls((t.prompt_token_ids, t.completion_token_ids, t.logprobs) for t in traces)

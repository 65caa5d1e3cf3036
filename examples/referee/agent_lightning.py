"""A sketch for Agent Lightning's proxy and store, Chat Completions alone; not run.

The proxy is at port 9001, the store at 9002. Read at microsoft/agent-lightning,
agentlightning/adapter/triplet.py 0baa3f03; the proxy's address by its documentation.
"""

from agentlightning import LightningStoreClient
from agentlightning.adapter import LlmProxyTraceToTriplet
from join_calls import join_calls

STORE = LightningStoreClient("http://127.0.0.1:9002")


async def open():
    """Begin a rollout, whose address has its id and its attempt's."""
    rollout = await STORE.start_rollout(input={})
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    return "http://127.0.0.1:9001/rollout/{}/attempt/{}".format(*ids), {}, ids


async def finish(ids):
    """Return its triplets, joined where one goes on from another; they have no logprobs."""
    triplets = LlmProxyTraceToTriplet().adapt(await STORE.query_spans(*ids))
    return join_calls((t.prompt["token_ids"], t.response["token_ids"], None) for t in triplets)

"""A sketch for uni-agent's gateway actor, Chat Completions alone; not run.

`make_actor(url)` is yours: it makes the actor with verl's client of the engine at that address.
Read at verl-project/uni-agent, uni_agent/gateway/gateway.py 00f4ba57.
"""

import uuid

import ray
from my_setup import make_actor

ACTOR = make_actor("http://127.0.0.1:9000")
ray.get(ACTOR.start.remote())


def open():
    """Open a session, whose address has its id."""
    handle = ray.get(ACTOR.create_session.remote(uuid.uuid4().hex))
    return handle.base_url, {}, handle.session_id


def finish(session):
    """Return its trajectories."""
    found = ray.get(ACTOR.finalize_session.remote(session))
    tokens = ([*t.prompt_ids, *t.response_ids] for t in found)
    masks = ([0] * len(t.prompt_ids) + t.response_mask for t in found)
    return [{"tokens": ids, "mask": mask} for ids, mask in zip(tokens, masks, strict=True)]

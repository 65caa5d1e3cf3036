"""Whether the way to an engine really brings routing back, tried before a run counts on it.

A server that was started without the flag sends none, and many a router in front of it drops the
field that asks for it (smg 1.13 keeps it): neither says so.
"""

from __future__ import annotations

import uuid

import numpy as np

from conf.errors import AgentrlError, ExitCode
from runners.engines.contract import Engine, SamplingParams
from runners.trajectory.routing import RoutingShape, build_turn_routing

PROMPT = [0, 1, 2]
START = 1
"""Not 0: whether rows begin where they are wanted is part of the question."""
NEW_TOKENS = 2
OFF = "or set routing_replay=off"


class RoutingProbeError(AgentrlError):
    """The engine does not return the routing that is to be replayed."""

    exit_code = ExitCode.PREFLIGHT


async def probe_routing(engine: Engine, shape: RoutingShape, name: str) -> None:
    """Have an engine sample two tokens with their routing; ``name`` is how it is called.

    Raises RoutingProbeError with what to change if the routing is not what a policy of ``shape``
    has, EngineError if the engine does not answer.
    """
    params = SamplingParams(max_new_tokens=NEW_TOKENS, routing_start=START)
    answer = await engine.generate(PROMPT, params, rid=f"routing-probe:{uuid.uuid4().hex}")
    path = np.concatenate([np.array(PROMPT, np.int32), answer.output_ids])
    if answer.routing is None:
        raise RoutingProbeError(
            f"routing_replay=rollout, but {name} returns no routing. A server needs "
            "--enable-return-routed-experts. An old router (sglang-router 0.3) drops the field "
            "that asks for it: take a newer one, or list the servers themselves in engine.workers "
            "and set engine.url to one of them; " + OFF
        )
    width = shape.layers * shape.top_k
    if answer.routing.size == (len(path) - 1) * width:
        raise RoutingProbeError(
            f"{name} takes no notice of routed_experts_start_len, so that each turn would bring "
            f"its whole history again: it needs a newer SGLang; {OFF}"
        )
    try:
        rows = build_turn_routing(answer.routing, path, START, shape, answer.weight_version).experts
    except ValueError as error:
        raise RoutingProbeError(
            f"{name} routes another model than model.path describes ({error}): point both to the "
            f"same; {OFF}"
        ) from error
    chosen = np.sort(rows[:, list(shape.routed)], axis=-1)
    twice = (chosen[..., 1:] == chosen[..., :-1]).any(axis=(0, 2))
    if twice.any():
        layer = shape.routed[int(np.argmax(twice))]
        raise RoutingProbeError(
            f"{name} says that layer {layer} routes a token twice to one expert: its routing is "
            f"incomplete, as it is with pipeline parallelism or a fused router; {OFF}"
        )

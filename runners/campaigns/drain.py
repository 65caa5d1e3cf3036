"""Pause all turns before new weights are loaded, and prove that the engine is idle.

Invariant: nothing is generated while weights change, so each token is of the weights that its
answer names; no completion mixes two versions unless turns are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runners.engines.contract import EngineError, ServedEngine
from runners.engines.resilient import PauseResult
from runners.gateway.client import GatewayAdmin

IDLE_DEADLINE_S = 10.0
"""An engine gets so long to notice that its last requests were aborted."""

POLL_S = 0.02
MAX_POLL_S = 0.5


@asynccontextmanager
async def pause_turns(
    gateway: GatewayAdmin,
    engine: ServedEngine,
    *,
    deadline_s: float,
    keep: bool = False,
    idle_s: float = IDLE_DEADLINE_S,
) -> AsyncIterator[PauseResult]:
    """Keep the engine idle inside this context; turns wait, and continue however it ends.

    Generations in flight get ``deadline_s`` to finish; the others are sampled again afterwards, or
    with ``keep`` continued from the tokens that they have. Raises GatewayError if the gateway
    cannot be paused or resumed, EngineError if the engine is not idle ``idle_s`` later.
    """
    try:
        paused = await gateway.pause(deadline_s, keep=keep)
        await _wait_until_idle(engine, idle_s)
        yield paused
    finally:
        await gateway.resume()


async def _wait_until_idle(engine: ServedEngine, within_s: float) -> None:
    """Return when the engine has no requests; abort once those that it still has."""
    clock = asyncio.get_running_loop().time
    ends, pause_s = clock() + within_s, POLL_S
    while not (load := await engine.loads()).idle:
        if clock() >= ends:
            raise EngineError(
                f"the engine still has {load.running} running and {load.waiting} waiting requests "
                f"{within_s:g} s after they were aborted: does another client use it?"
            )
        if pause_s == POLL_S:  # the first look: the gateway's own requests have ended already
            await engine.abort_all()
        await asyncio.sleep(pause_s)
        pause_s = min(MAX_POLL_S, 2 * pause_s)

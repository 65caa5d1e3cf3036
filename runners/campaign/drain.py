"""The barrier before new weights or a release of memory: nothing is in flight, and the engine says
so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runners.engines.contract import EngineError, ServedEngine
from runners.engines.resilient import PauseResult
from runners.gateway.client import GatewayAdmin

IDLE_DEADLINE_S = 10.0
"""What an engine gets to take note that its last requests were aborted."""

POLL_S = 0.02
POLL_MOST_S = 0.5


@asynccontextmanager
async def drained(
    gateway: GatewayAdmin,
    engine: ServedEngine,
    *,
    deadline_s: float,
    idle_s: float = IDLE_DEADLINE_S,
) -> AsyncIterator[PauseResult]:
    """Keep the engine idle inside this context; turns wait, and go on after it, however it ends.

    Generations in flight get ``deadline_s`` to finish. Raises GatewayError if the gateway cannot be
    paused or resumed, EngineError if the engine is not idle ``idle_s`` later.
    """
    try:
        done = await gateway.pause(deadline_s)
        await _prove_idle(engine, idle_s)
        yield done
    finally:
        await gateway.resume()


async def _prove_idle(engine: ServedEngine, within_s: float) -> None:
    """Return when the engine has nothing to do; what it still has is nobody's, and aborted."""
    clock = asyncio.get_running_loop().time
    ends, pause_s = clock() + within_s, POLL_S
    while not (load := await engine.loads()).idle:
        if clock() >= ends:
            raise EngineError(
                f"the engine still has {load.running} running and {load.waiting} waiting requests "
                f"{within_s:g} s after they were aborted: does somebody else use it?"
            )
        if pause_s == POLL_S:
            await engine.abort_all()
        await asyncio.sleep(pause_s)
        pause_s = min(POLL_MOST_S, 2 * pause_s)

"""A scripted engine in a process of its own, which a test can kill: ``python -m … PORT VERSION``.

With port 0 it takes a free one. Prints its URL when it answers.
"""

from __future__ import annotations

import asyncio
import sys

from agentrl.testing.completions import Completion, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.system.processes.service import wait_for_parent_exit

SAYS = spoken([{"type": "text", "text": "I give up."}])
DELAY_S = 0.5
"""Of an answer: long enough that a kill meets some in flight."""


async def serve(port: int, version: str) -> None:
    """Serve until the starting process is gone."""
    engine = ScriptedEngine()
    engine.port, engine.weight_version = port, version
    engine.always = Completion(SAYS, delay_s=DELAY_S)
    async with engine:
        print(engine.url, flush=True)
        await wait_for_parent_exit()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))

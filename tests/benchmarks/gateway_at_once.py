"""Long sessions side by side: what a turn at their end costs a gateway, and how many there are.

``measure_at_once`` measures the gateway, then an adapter that renders every request whole, then one
that only passes a prompt of that length on (``rerendering_gateway.py``). All begin with the same
histories, which the gateway has played before the clock started; the others keep nothing, so each
request brings them all. The load is ``gateway_load.py``.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runners.records.tokenizer import tiny_tokenizer
from tests.benchmarks.benched_gateway import (
    CALL,
    GATEWAY,
    LINES,
    RERENDERING,
    cpu_s,
    started_gateway,
)
from tests.benchmarks.gateway_load import (
    CALL_ID,
    Agent,
    GrowingBody,
    InstantEngine,
    check_turns,
)

LONG_TOKENS = 60_000
LONG_TURNS = 128
"""Of each session."""
WARM_UP = 20
"""Turns of a short session, and after them one of each long one, before the clock starts."""
LATE_TURNS = {"gateway": 16, "re-rendering": 2, "forwarding": 16}
"""Turns of each session that are measured: its last ones, of a slow way those in their middle, so
that the prompts of all ways are equally long in the mean.
"""
HISTORY = LONG_TURNS - max(LATE_TURNS.values()) - 2
"""Turns that the gateway plays before that, but for one; one is taken after the clock has stopped.
"""
ANSWER: dict[str, Any] = {
    "content": [
        {"type": "text", "text": "I look."},
        {
            "type": "tool_use",
            "id": CALL_ID,
            "name": "Bash",
            "input": {"command": "cat calc.py | head -40"},
        },
    ]
}
"""What a client makes of ``CALL``."""


def long_output(turns: int) -> str:
    """Return the output of a tool by which a session has ``LONG_TOKENS`` after so many turns."""
    tokens_per_copy = len(tiny_tokenizer().encode(LINES).ids)
    return LINES * (LONG_TOKENS // (turns * tokens_per_copy))


@dataclass
class _Histories:
    """Histories that the gateway has played, for the ways after it."""

    sessions: int
    bodies: list[GrowingBody] = field(default_factory=list)
    bytes_per_token: float = 0
    """Of a body, and of the prompt that it becomes."""

    def begin(self) -> list[GrowingBody]:
        """Return a body for each session, of the history as far as it is known."""
        if self.bodies:
            return [body.copy() for body in self.bodies]
        return [
            GrowingBody(long_output(LONG_TURNS), ANSWER, LONG_TURNS) for _ in range(self.sessions)
        ]


def measure_at_once(
    sessions: int,
) -> Iterator[Callable[[Path], Coroutine[Any, Any, dict[str, Any]]]]:
    """Yield what measures each way, to be called one after the other with a directory of its own;
    each returns a table's row.
    """
    histories = _Histories(sessions)
    yield partial(_measure, "gateway", histories, GATEWAY, None)
    yield partial(_measure, "re-rendering", histories, RERENDERING, None)
    more = {"bytes_per_token": histories.bytes_per_token}
    yield partial(_measure, "forwarding", histories, RERENDERING, more)


async def _measure(
    way: str,
    histories: _Histories,
    module: str,
    more: Mapping[str, Any] | None,
    directory: Path,
) -> dict[str, Any]:
    async with (
        InstantEngine(CALL) as engine,
        started_gateway(
            directory, engine.url, module=module, more=more, max_context_tokens=10**6
        ) as (admin, process),
    ):
        _, key = await admin.create_session("warm-up")
        short = await Agent.connect(admin.urls[0], key, GrowingBody(LINES, ANSWER, WARM_UP))
        await short.take_turns(WARM_UP)
        short.close()
        agents = [
            await Agent.connect(admin.urls[0], (await admin.create_session(f"s{i}"))[1], body)
            for i, body in enumerate(histories.begin())
        ]

        async def take_turns(turns: int) -> None:
            await asyncio.gather(*(agent.take_turns(turns) for agent in agents))

        if way == "gateway":
            await take_turns(HISTORY)
            histories.bodies = [agent.body.copy() for agent in agents]
        for agent in agents:
            for _ in range((max(LATE_TURNS.values()) - LATE_TURNS[way]) // 2):
                agent.body.add_turn(CALL_ID.encode())
            agent.answers.clear()
        engine.forget()
        engine.keeps = True
        await take_turns(1)
        engine.keeps = False
        gc.disable()  # a pause of this process, agents and engine at once, is not the gateway's
        used, began = cpu_s(process), time.monotonic()
        await take_turns(LATE_TURNS[way])
        wall, used = time.monotonic() - began, cpu_s(process) - used
        gc.enable()
        engine.keeps = True
        await take_turns(1)
        check_turns(agents, engine, LATE_TURNS[way] + 2, repeats=way == "gateway")
        stats = await admin.stats("s0")
        assert stats["breaks"] == []
        for agent in agents:
            agent.close()
    total, tokens = LATE_TURNS[way] * len(agents), engine.counted["s0"][-1]
    if way == "gateway":
        histories.bytes_per_token = len(agents[0].body) / tokens
    return {
        "way": way,
        "sessions": len(agents),
        "turns": total,
        "tokens at end": tokens,
        "kB in": len(agents[0].body) // 1000,
        "kB to engine": len(engine.kept["s0"][-1]) // 1000,
        "CPU ms/turn": round(1000 * used / total, 2),
        "turns/CPU s": round(total / used),
        "turns/s here": round(total / wall, 1),
    }

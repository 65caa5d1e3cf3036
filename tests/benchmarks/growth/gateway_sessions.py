"""What a turn costs the gateway over the length of its history, and over the open sessions."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from runners.records.tokenizer import tiny_tokenizer
from tests.benchmarks.bench_gateway import make_prompt, running_bench
from tests.benchmarks.benched_gateway import LINES
from tests.benchmarks.growth.curve import Curve

NEW_TOKENS = 470
"""Of a tool's output, in every turn."""
AROUND = 4
"""Turns before and after one whose cost is the median of theirs."""
TURNS = 6
"""Of each of many sessions."""


async def measure_history(directory: Path, turns: Sequence[int]) -> Curve:
    """Return CPU milliseconds of a turn of one session, over the tokens of its prompt."""
    output = LINES * (NEW_TOKENS // len(tiny_tokenizer().encode(LINES).ids))
    async with running_bench(directory) as bench:
        _, key = await bench.gateway.admin.create_session("long")
        clock = await bench.converse(key, output, max(turns) + AROUND, output)
        requests = bench.gateway.engine.seen.requests[-(max(turns) + AROUND) :]
        tokens = [len(request["input_ids"]) for request in requests]
    costs = [1000 * (after - before) for before, after in pairwise(clock)]
    points = tuple(
        (tokens[turn], statistics.median(costs[turn - AROUND : turn + AROUND])) for turn in turns
    )
    return Curve("gateway", "CPU ms per turn", "tokens of the history", 0, points)


async def measure_sessions(directory: Path, sessions: Sequence[int]) -> list[Curve]:
    """Return CPU milliseconds of a turn and kB of a session, over the sessions at once."""
    cpu, memory = [], []
    for count in sessions:
        async with running_bench(directory / str(count)) as bench:
            keys = [(await bench.gateway.admin.create_session(f"s{i}"))[1] for i in range(count)]
            held, used = bench.memory(), bench.cpu_s()
            talks = [bench.converse(key, make_prompt(1500), TURNS) for key in keys]
            await asyncio.gather(*talks)
            cpu.append((count, 1000 * (bench.cpu_s() - used) / (count * TURNS)))
            memory.append((count, (bench.memory() - held) / count / 1000))
    return [
        Curve("gateway", "CPU ms per turn", "sessions at once", 0, tuple(cpu)),
        Curve("gateway", "kB per session", "sessions at once", 0, tuple(memory)),
    ]

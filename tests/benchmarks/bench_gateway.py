"""The gateway's own cost: CPU per turn and memory per session, with an engine that answers at once.

    python -m tests.benchmarks.bench_gateway
    python -m tests.benchmarks.bench_gateway --sessions 4 --turns 40 --prompt-chars 130000
    python -m tests.benchmarks.bench_gateway --long

``--long`` prints a table instead: sessions that grow to 60 000 tokens in 8, 32 and 128 turns.

The gateway runs in its own process; engine and agents run in this one and are not counted. Memory
is what the gateway's private memory (USS) grew by while all sessions were open, per session.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from runners.testing.tiny_tokenizer import tiny_tokenizer
from tests.benchmarks.benched_gateway import OUTPUT, BenchedGateway, benched_gateway
from tests.fakes.running_gateway import user

LINES = "def add(a, b):\n    return a - b\n"

LONG_TOKENS = 60_000
LONG_TURNS = (8, 32, 128)
LONG_SESSIONS = 4


@dataclass(frozen=True, slots=True)
class Bench:
    """A gateway and its clients, and its use of CPU and memory."""

    gateway: BenchedGateway
    http: aiohttp.ClientSession

    def cpu_s(self) -> float:
        """CPU time of all its threads, in nanoseconds' resolution (``cpu_times`` has 10 ms)."""
        tasks = Path(f"/proc/{self.gateway.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def memory(self) -> int:
        """Private memory, in bytes."""
        return int(self.gateway.process.memory_full_info().uss)

    async def converse(
        self, key: str, prompt: str, turns: int, output: str = OUTPUT
    ) -> list[float]:
        """Play one agent; return the gateway's CPU time before and after each turn, in seconds."""
        messages, clock = [user(prompt)], [self.cpu_s()]
        for _ in range(turns):
            await self.gateway.take_turn(self.http, key, messages, output)
            clock.append(self.cpu_s())
        return clock


@asynccontextmanager
async def running_bench(directory: Path) -> AsyncIterator[Bench]:
    """Start everything, warm it up, and end it."""
    async with (
        benched_gateway(directory, max_context_tokens=10**6) as gateway,
        aiohttp.ClientSession() as http,
    ):
        bench = Bench(gateway, http)
        _, key = await gateway.admin.create_session("warm-up")
        await bench.converse(key, "warm up", 20)
        yield bench


async def measure(sessions: int, turns: int, prompt_chars: int, directory: Path) -> dict[str, Any]:
    """Run the sessions at once; return the figures."""
    prompt = ("Fix the bug: add subtracts. " * (prompt_chars // 28 + 1))[:prompt_chars]
    async with running_bench(directory) as bench:
        admin = bench.gateway.admin
        keys = [(await admin.create_session(f"s{i}"))[1] for i in range(sessions)]
        memory, used, began = bench.memory(), bench.cpu_s(), time.monotonic()
        await asyncio.gather(*(bench.converse(key, prompt, turns) for key in keys))
        wall, cpu = time.monotonic() - began, bench.cpu_s() - used
        grown = bench.memory() - memory
        stats = await admin.stats("s0")
        before_end = bench.cpu_s()
        for i in range(sessions):
            await admin.finish(f"s{i}")
            await admin.delete(f"s{i}")
        ending = bench.cpu_s() - before_end
        context = len(bench.gateway.engine.seen.requests[-1]["input_ids"])
    return {
        "sessions": sessions,
        "turns": sessions * turns,
        "context_tokens": context,
        "breaks": len(stats["breaks"]),
        "cpu_ms_per_turn": round(1000 * cpu / (sessions * turns), 3),
        "turns_per_s": round(sessions * turns / wall, 1),
        "cpu_ms_per_session_end": round(1000 * ending / sessions, 3),
        "kb_per_session": round(grown / sessions / 1024, 1),
    }


async def measure_long(turns: int, directory: Path) -> dict[str, Any]:
    """Run sessions one after the other that all end at ``LONG_TOKENS``; return a table's row."""
    tokens_per_copy = len(tiny_tokenizer().encode(LINES).ids)
    output = LINES * (LONG_TOKENS // (turns * tokens_per_copy))
    costs: list[list[float]] = []
    async with running_bench(directory) as bench:
        memory = bench.memory()
        for number in range(LONG_SESSIONS):
            _, key = await bench.gateway.admin.create_session(f"s{number}")
            clock = await bench.converse(key, output, turns, output)
            costs.append([1000 * (after - before) for before, after in pairwise(clock)])
            bench.gateway.engine.seen.requests[:-1] = []  # large, and of this process
        grown = bench.memory() - memory
        stats = await bench.gateway.admin.stats("s0")
        assert stats["breaks"] == []
        context = len(bench.gateway.engine.seen.requests[-1]["input_ids"])
    per_turn = [statistics.median(session[turn] for session in costs) for turn in range(turns)]
    return {
        "turns": turns,
        "tokens at end": context,
        "CPU ms/turn": round(statistics.mean(per_turn), 2),
        "first": round(per_turn[0], 2),
        "last": round(per_turn[-1], 2),
        "last/first": round(per_turn[-1] / per_turn[0], 2),
        "KB/session": round(grown / LONG_SESSIONS / 1024),
    }


def print_table() -> None:
    """Print the rows of ``--long`` as they come."""
    for turns in LONG_TURNS:
        with tempfile.TemporaryDirectory() as directory:
            row = uvloop.run(measure_long(turns, Path(directory)))
        if turns == LONG_TURNS[0]:
            print(" | ".join(f"{name:>13}" for name in row))
        print(" | ".join(f"{value:>13}" for value in row.values()), flush=True)


def main() -> None:
    """Print one JSON object, or a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8, help="per session")
    parser.add_argument("--prompt-chars", type=int, default=1500)
    parser.add_argument("--long", action="store_true", help="print the table of long sessions")
    wanted = parser.parse_args()
    if wanted.long:
        print_table()
        return
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(wanted.sessions, wanted.turns, wanted.prompt_chars, Path(directory))
        print(json.dumps(uvloop.run(figures)))


if __name__ == "__main__":
    main()

"""The gateway's own cost: CPU per turn and memory per session, with an engine that answers at once.

    python -m tests.benchmarks.bench_gateway
    python -m tests.benchmarks.bench_gateway --sessions 4 --turns 40 --prompt-chars 130000
    python -m tests.benchmarks.bench_gateway --long
    python -m tests.benchmarks.bench_gateway --at-once 16
    python -m tests.benchmarks.bench_gateway --replicas 1 2

``--long`` prints a table instead: sessions that grow to 60 000 tokens in 8, 32 and 128 turns; then
the same through an adapter that renders every request whole, and through one that only passes a
prompt of that length on (``rerendering_gateway.py``): the others' way, and the limit.
``--at-once N`` prints what the last of 128 turns cost each of them with N such sessions side by
side, and how many turns a second there are (``gateway_at_once.py``).
``--many N`` prints how long turns of N sessions take, by the clock, which take one turn a while.
``--replicas`` prints a table of ``gateway.replicas``: CPU time per turn of all processes, and of
the busiest one, which decides how many turns a second there can be with enough cores.

The gateway runs in its own process; engine and agents run in this one and are not counted. In
``--at-once`` they cost so little that the gateway decides how many turns there are. Memory
is what the gateway's private memory (USS) grew by while all sessions were open, per session.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from tests.benchmarks.benched_gateway import (
    OUTPUT,
    RERENDERING,
    BenchedGateway,
    benched_gateway,
    cpu_s,
)
from tests.benchmarks.gateway_at_once import LONG_TURNS, long_output, measure_at_once
from tests.fakes.running_gateway import user

LONG_SIZES = (8, 32, LONG_TURNS)
"""Turns in which the sessions of ``--long`` grow."""
LONG_SESSIONS = 4
MANY_TURNS = 4

WAYS: dict[str, dict[str, Any]] = {
    "gateway": {},
    "re-rendering": {"module": RERENDERING},
    "forwarding": {"module": RERENDERING, "more": {"bytes_per_token": 2.2}},
}


@dataclass(frozen=True, slots=True)
class Bench:
    """A gateway and its clients, and its use of CPU and memory."""

    gateway: BenchedGateway
    http: aiohttp.ClientSession

    def cpu_s(self) -> float:
        """CPU time of the processes that serve."""
        return sum(self.cpu_of_each())

    def cpu_of_each(self) -> list[float]:
        """CPU time of each process that serves."""
        return [cpu_s(process) for process in self.gateway.processes]

    def memory(self) -> int:
        """Private memory, in bytes."""
        return int(self.gateway.processes[0].memory_full_info().uss)

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
async def running_bench(
    directory: Path, replicas: int = 1, way: str = "gateway"
) -> AsyncIterator[Bench]:
    """Start everything, warm every process up, and end it."""
    async with (
        benched_gateway(
            directory, max_context_tokens=10**6, replicas=replicas, **WAYS[way]
        ) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        bench = Bench(gateway, http)
        for number in range(replicas):
            _, key = await gateway.admin.create_session(f"warm-up-{number}")
            await bench.converse(key, "warm up", 20)
        for number in range(replicas):
            await gateway.admin.delete(f"warm-up-{number}")
        yield bench


def make_prompt(chars: int) -> str:
    """Return a prompt of that length."""
    return ("Fix the bug: add subtracts. " * (chars // 28 + 1))[:chars]


async def measure(sessions: int, turns: int, prompt: str, directory: Path) -> dict[str, Any]:
    """Run the sessions at once; return the figures."""
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


async def measure_long(turns: int, way: str, directory: Path) -> dict[str, Any]:
    """Run sessions one after the other that all end at 60,000 tokens; return a table's row."""
    output = long_output(turns)
    costs: list[list[float]] = []
    sessions = 1 if way == "re-rendering" else LONG_SESSIONS  # it takes a tenth of a second a turn
    async with running_bench(directory, way=way) as bench:
        memory = bench.memory()
        for number in range(sessions):
            _, key = await bench.gateway.admin.create_session(f"s{number}")
            clock = await bench.converse(key, output, turns, output)
            costs.append([1000 * (after - before) for before, after in pairwise(clock)])
            bench.gateway.engine.seen.requests[:-1] = []  # large, and of this process
        grown = bench.memory() - memory
        stats = await bench.gateway.admin.stats("s0")
        assert stats["breaks"] == []
        context = len(bench.gateway.engine.seen.requests[-1]["input_ids"])
    per_turn = [statistics.median(session[turn] for session in costs) for turn in range(turns)]
    early, late = statistics.median(per_turn[6:9]), statistics.median(per_turn[-3:])
    return {
        "way": way,
        "turns": turns,
        "tokens at end": context,
        "CPU ms/turn": round(statistics.mean(per_turn), 2),
        "turn 8": round(early, 2),
        "last": round(late, 2),
        "last/turn 8": round(late / early, 2),
        "KB/session": round(grown / sessions / 1024),
    }


async def measure_many(sessions: int, rate: float, directory: Path) -> dict[str, Any]:
    """Let the sessions take four turns each, ``rate`` a second in all; return a table's row."""
    async with running_bench(directory) as bench:
        keys = [(await bench.gateway.admin.create_session(f"s{i}"))[1] for i in range(sessions)]
        took: list[float] = []
        used = bench.cpu_s()

        async def converse(number: int, key: str) -> None:
            messages = [user(f"{number}: {make_prompt(1500)}")]
            clock = asyncio.get_running_loop().time
            begins = clock() + number / rate
            for turn in range(MANY_TURNS):
                await asyncio.sleep(begins + turn * sessions / rate - clock())
                began = clock()
                await bench.gateway.take_turn(bench.http, key, messages)
                took.append(1000 * (clock() - began))
                bench.gateway.engine.seen.forget()

        gc.disable()  # a pause of this process, client and engine at once, is not the gateway's
        await asyncio.gather(*(converse(number, key) for number, key in enumerate(keys)))
        used = bench.cpu_s() - used
    took.sort()
    return {
        "sessions": sessions,
        "turns/s": rate,
        "CPU ms/turn": round(1000 * used / len(took), 2),
        "median ms": round(statistics.median(took), 1),
        "p99 ms": round(took[len(took) * 99 // 100], 1),
        "longest ms": round(took[-1], 1),
    }


async def measure_replicas(
    replicas: int, sessions: int, turns: int, prompt: str, directory: Path
) -> dict[str, Any]:
    """Run the sessions at once through so many processes; return a table's row."""
    async with running_bench(directory, replicas) as bench:
        keys = [(await bench.gateway.admin.create_session(f"s{i}"))[1] for i in range(sessions)]
        at_first, began = bench.cpu_of_each(), time.monotonic()
        await asyncio.gather(*(bench.converse(key, prompt, turns) for key in keys))
        wall, total = time.monotonic() - began, sessions * turns
        used = [after - before for before, after in zip(at_first, bench.cpu_of_each(), strict=True)]
    return {
        "replicas": replicas,
        "turns": total,
        "CPU ms/turn": round(1000 * sum(used) / total, 3),
        "of busiest": round(1000 * max(used) / total, 3),
        "turns/s bound": round(total / max(used)),
        "turns/s here": round(total / wall),
    }


def print_table(rows: Iterable[Callable[[Path], Coroutine[Any, Any, dict[str, Any]]]]) -> None:
    """Print rows as they come, each measured in a directory of its own."""
    for number, measure_row in enumerate(rows):
        with tempfile.TemporaryDirectory() as directory:
            row = uvloop.run(measure_row(Path(directory)))
        if number == 0:
            print(" | ".join(f"{name:>13}" for name in row))
        print(" | ".join(f"{value:>13}" for value in row.values()), flush=True)


def main() -> None:
    """Print one JSON object, or a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8, help="per session")
    parser.add_argument("--prompt-chars", type=int, default=1500)
    parser.add_argument("--long", action="store_true", help="print the table of long sessions")
    parser.add_argument(
        "--at-once", type=int, metavar="N", help="print the table of N long sessions side by side"
    )
    parser.add_argument(
        "--many", type=int, metavar="N", help="print how long turns of so many sessions take"
    )
    parser.add_argument("--rate", type=float, default=100.0, help="turns a second of --many")
    parser.add_argument(
        "--replicas", type=int, nargs="+", metavar="N", help="print the table of gateway.replicas"
    )
    wanted = parser.parse_args()
    prompt = make_prompt(wanted.prompt_chars)
    if wanted.long:
        print_table(partial(measure_long, turns, way) for turns in LONG_SIZES for way in WAYS)
        return
    if wanted.at_once:
        print_table(measure_at_once(wanted.at_once))
        return
    if wanted.many:
        print_table([partial(measure_many, wanted.many, wanted.rate)])
        return
    if wanted.replicas:
        load = wanted.sessions, wanted.turns, prompt
        print_table(partial(measure_replicas, number, *load) for number in wanted.replicas)
        return
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(wanted.sessions, wanted.turns, prompt, Path(directory))
        print(json.dumps(uvloop.run(figures)))


if __name__ == "__main__":
    main()

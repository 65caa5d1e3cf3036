"""Measure continued turns and changes of weights of the embedded engine.

python -m tests.benchmarks.bench_engine_turns [--threads 1] [--changes 7]

A turn that adds 40 tokens to a history of 250 to 3,900, answered by one token: tokens computed and
processor time, with the history in the prefix cache and with an empty cache.

Sixteen sessions of 400 tokens sample while weights change; gaps are those between two tokens of one
request, the longest of all requests, the median of several changes: without a change, with weights
that are loaded in flight, and with requests held while they are loaded. ``cpu`` is processor time
of the thread that computes tokens, which other programs hardly change, but which does not count
what the thread waits for; ``wall`` is by the clock. ``steps_…`` is the longest gap over the usual
one: a change without a pause is one of a few steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from runners.engines.embedded.buffers import FloatArray
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.model import Qwen3Moe
from runners.engines.embedded.request import Request, RequestSampling
from runners.engines.embedded.scheduler import Scheduler
from runners.engines.embedded.weights import load_weights
from runners.records.record import IdArray
from tests.fakes.tiny_model import write_tiny_model

VOCABULARY = 800
NEW, CONTEXT = 40, 4096
HISTORIES = (250, 500, 1000, 2000, 3900)
REPEATS = 5
SESSIONS, PROMPT, OUTPUT = 16, 400, 3000
WAYS = ("none", "in flight", "held")


def draw(seed: int, count: int) -> IdArray:
    """Draw a prompt, int32 [count]."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).astype(np.int32)


def run_turn(scheduler: Scheduler, ids: IdArray) -> tuple[int, float]:
    """Run a turn of one token; return the tokens computed and milliseconds of processor time."""
    request = Request("turn", ids, RequestSampling(1, seed=1), None, None, time.monotonic())
    scheduler.waiting.append(request)
    began = time.process_time()
    while not request.result.done():
        scheduler.step()
    return len(ids) - request.result.result().cached_tokens, 1e3 * (time.process_time() - began)


def measure_turns(model: Path) -> list[dict[str, float]]:
    """Measure a continued turn at every length of its history; the fastest of some repeats."""
    scheduler = Scheduler(
        Qwen3Moe(load_weights(model), CONTEXT), max_running_requests=4, cache_tokens=2**18,
        max_context_tokens=CONTEXT, weight_version=0, tokenizer=None,
    )  # fmt: skip
    rows = []
    for history in HISTORIES:
        continued, whole = [], []
        for repeat in range(REPEATS):
            ids = draw(1000 * repeat + history, history + NEW)
            run_turn(scheduler, ids[:history])
            continued.append(run_turn(scheduler, ids))
            scheduler.flush()
            whole.append(run_turn(scheduler, ids))
        (tokens, ms), (all_tokens, all_ms) = min(continued), min(whole)
        rows.append(
            {
                "history": history,
                "computed": tokens,
                "ms": round(ms, 1),
                "computed_whole": all_tokens,
                "ms_whole": round(all_ms, 1),
            }
        )
    return rows


Times = dict[str, list[tuple[float, float]]]
"""Processor time of the worker and time by the clock, in seconds, of each request's tokens."""


class TimedCore(EngineCore):
    """An engine that notes when each request got a token."""

    def watch(self) -> Times:
        """Return the times of each request's tokens from now on, which the worker adds to."""
        times: Times = {}
        scheduler, step = self._scheduler, type(self._scheduler).step

        def timed() -> None:
            step(scheduler)
            now, rows = (time.thread_time(), time.perf_counter()), scheduler.rows
            for request in rows.requests[: rows.decoding]:
                times.setdefault(request.rid, []).append(now)

        scheduler.step = timed  # type: ignore[method-assign]
        return times


async def measure_gaps(models: tuple[Path, Path], changes: int) -> list[dict[str, float | str]]:
    """Return the usual gap of every way in ms, and the longest around a change."""
    core = TimedCore(models[0], max_context_tokens=CONTEXT)
    times = core.watch()
    longest: dict[str, list[FloatArray]] = {way: [] for way in WAYS}
    usual: list[FloatArray] = []
    for number in range(changes):
        # anew, so that every change finds sessions of the same length
        tasks = [
            asyncio.create_task(core.run(f"{index}", draw(index, PROMPT), RequestSampling(OUTPUT)))
            for index in range(SESSIONS)
        ]
        await asyncio.sleep(1)
        for way in WAYS:
            times.clear()
            await asyncio.sleep(0.1)
            if way == "in flight":
                await core.switch_weights(models[number % 2], number, retract=True)
            elif way == "held":
                await core.pause("retract")
                await core.switch_weights(models[number % 2], number)
                await core.resume()
            await asyncio.sleep(0.4)
            found = [1e3 * np.diff(at, axis=0) for at in list(times.values()) if len(at) > 1]
            gaps = np.concatenate(found)
            longest[way].append(gaps.max(0))
            usual.append(np.median(gaps, axis=0))
        await core.abort(lambda rid: True)
        await asyncio.gather(*tasks)
    await core.close()
    cpu, wall = np.median(usual, axis=0)
    rows: list[dict[str, float | str]] = []
    for way, several in longest.items():
        most_cpu, most_wall = np.median(several, axis=0)
        rows.append(
            {
                "weights": way,
                "usual_cpu_ms": round(cpu, 1),
                "longest_cpu_ms": round(most_cpu, 1),
                "steps_cpu": round(most_cpu / cpu, 1),
                "usual_wall_ms": round(wall, 1),
                "longest_wall_ms": round(most_wall, 1),
                "steps_wall": round(most_wall / wall, 1),
            }
        )
    return rows


def main() -> None:
    """Measure, print tables for people and one JSON line for programs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--changes", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        models = (
            write_tiny_model(Path(first), vocab_size=VOCABULARY),
            write_tiny_model(Path(second), vocab_size=VOCABULARY, seed=1),
        )
        turns = measure_turns(models[0])
        gaps = asyncio.run(measure_gaps(models, args.changes))
    rows: list[Mapping[str, float | str]] = [*turns, *gaps]
    for row in rows:
        print("  ".join(f"{name} {value:>6}" for name, value in row.items()))
    print(json.dumps({"benchmark": "engine_turns", "turns": turns, "gaps": gaps}))


if __name__ == "__main__":
    main()

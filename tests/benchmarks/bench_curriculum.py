"""Tokens until a held-out solve rate: which tasks a step trains on, compared on several seeds.

    python -m tests.benchmarks.bench_curriculum --seeds 0 1 2 --dir curriculum --out curriculum.json

Each campaign is `agentrl run scenario=linear` in its own process, `--jobs` of them at once. What
is done already in `--dir` is not done again, and what was cut off there goes on: the command can be
given again. `--limit-s` stops all campaigns in an orderly way.

The solve rate after a step is the mean of the last two evaluations. Tokens are all that training
has sampled until then (dropped and retried rollouts too, evaluations not). A campaign that never
gets there counts with all of its tokens, which is then a lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore

DYNAMIC = ("rollout.replace_flat=true", "rollout.spare_groups=8")
ARMS: dict[str, tuple[str, ...]] = {
    "epoch": (),
    "curriculum": ("run.sampler=curriculum",),
    "dynamic": DYNAMIC,
    "both": ("run.sampler=curriculum", *DYNAMIC),
}
"""What is compared; the first is today's default."""
END_S = 40.0
"""Time that a campaign has to end after it was asked to."""


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation."""

    step: int
    tokens: int
    """Sampled by training until then."""
    rollouts: int
    rate: float


@dataclass(frozen=True, slots=True)
class Reached:
    """The tokens that a campaign needed."""

    tokens: int
    steps: int
    reached: bool
    """False: it never got there, and these are all that it had."""


def read_points(store: RunStore) -> list[Point]:
    """Return the evaluations of a campaign, in order."""
    spent = store.query(
        "SELECT step, sum(sampled_tokens), count(*) FROM rollout WHERE split = 'train' "
        "GROUP BY step"
    )
    return [
        Point(
            row.step,
            sum(tokens for step, tokens, _ in spent if step <= row.step),
            sum(count for step, _, count in spent if step <= row.step),
            row.result["solve_rate"],
        )
        for row in store.evaluations()
        if row.result["solve_rate"] is not None
    ]


def find_reached(points: Sequence[Point], rate: float) -> Reached:
    """Return when the mean of two evaluations in a row was first at least ``rate``."""
    for before, now in pairwise(points):
        if (before.rate + now.rate) / 2 >= rate:
            return Reached(now.tokens, now.step, reached=True)
    return Reached(points[-1].tokens, points[-1].step, reached=False)


def is_done(directory: Path) -> bool:
    """Return whether a campaign has ended by itself."""
    if not (directory / "store.sqlite").exists():
        return False
    with RunStore.open(directory, read_only=True) as store:
        return store.state().state is State.DONE


class Campaigns:
    """Runs campaigns side by side, each in a process of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._slots = asyncio.Semaphore(options.jobs)
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Run all of them; after the limit those that run are stopped and no others begin."""
        options = self._options
        options.dir.mkdir(parents=True, exist_ok=True)
        await self._run("policy", ("run.steps=0", "run.eval_tasks=0"))  # made once, for all
        limit = asyncio.get_running_loop().call_later(options.limit_s, self._stopped.set)
        async with asyncio.TaskGroup() as group:
            for seed in options.seeds:
                for arm in options.arms:
                    group.create_task(self._run(f"{arm}-{seed}", self._settings(arm, seed)))
        limit.cancel()

    def _settings(self, arm: str, seed: int) -> tuple[str, ...]:
        options = self._options
        size = (f"run.eval_tasks={options.eval_tasks}", f"run.eval_every={options.eval_every}")
        return (*ARMS[arm], f"seed={seed}", f"run.steps={options.steps}", *size)

    async def _run(self, name: str, settings: tuple[str, ...]) -> None:
        directory = self._options.dir / name
        async with self._slots:
            if self._stopped.is_set() or is_done(directory):
                return
            begun = (directory / "store.sqlite").exists()
            run = ("--resume", str(directory)) if begun else (f"run.dir={directory}", *settings)
            if not begun:
                run = ("scenario=linear", *run, *self._fixed())
            await self._wait(name, await self._start(name, run))

    def _fixed(self) -> tuple[str, ...]:
        options = self._options
        return (f"trainer.threads={options.threads}", *options.overrides)

    async def _start(self, name: str, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        threads = str(self._options.threads)
        with (self._options.dir / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cli.main", "run", "--json", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Engine and trainer of one campaign take turns, so they may share its cores.
                env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
                start_new_session=True,
            )

    async def _wait(self, name: str, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(self._stopped.wait())
        began = time.monotonic()
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ended.done():
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), END_S)
        if not ended.done():
            process.kill()
        code = await ended
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{name}: exit code {code} after {took}", file=sys.stderr, flush=True)


def read_results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each campaign has found so far; those without two evaluations are left out."""
    results = []
    for arm in options.arms:
        for seed in options.seeds:
            directory = options.dir / f"{arm}-{seed}"
            if not (directory / "store.sqlite").exists():
                continue
            with RunStore.open(directory, read_only=True) as store:
                points = read_points(store)
                flat = [
                    row.metrics["rollout/groups_flat"] / row.metrics["rollout/groups"]
                    for row in store.steps()
                    if row.state == "done"
                ]
            if len(points) < 2:
                continue
            reached = {rate: find_reached(points, rate) for rate in options.rates}
            results.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "best": max(point.rate for point in points),
                    "flat_share": statistics.fmean(flat),
                    "reached": {
                        str(rate): [found.tokens, found.steps, found.reached]
                        for rate, found in reached.items()
                    },
                    "evaluations": [
                        [point.step, point.tokens, point.rollouts, point.rate] for point in points
                    ],
                }
            )
    return results


def show(results: list[dict[str, Any]], rates: Sequence[float], seeds: Sequence[int]) -> Table:
    """Return a table: tokens by arm and seed, and their sum as a part of the first arm's."""
    table = Table(title="thousands of tokens (steps) until a held-out solve rate; > never reached")
    for column in ("solve rate", "tasks", *(f"seed {seed}" for seed in seeds), "of epoch's"):
        table.add_column(column, justify="right")
    for rate in rates:
        found = {(each["arm"], each["seed"]): each["reached"][str(rate)] for each in results}
        for arm in dict.fromkeys(arm for arm, _ in found):
            both = [seed for seed in seeds if {(arm, seed), ("epoch", seed)} <= found.keys()]
            whole, base = (sum(found[name, s][0] for s in both) for name in (arm, "epoch"))
            table.add_row(
                f"{rate:.2f}",
                arm,
                *(_cell(found.get((arm, seed))) for seed in seeds),
                f"{whole / base:.2f}" if both else "",
            )
    return table


def _cell(found: list[Any] | None) -> str:
    if found is None:
        return ""
    tokens, steps, reached = found
    return f"{'' if reached else '> '}{tokens / 1000:.0f} ({steps})"


def main() -> None:
    """Run the campaigns that are not done, print a table and write the JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.8, 0.85, 0.9])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eval-tasks", type=int, default=128)
    parser.add_argument("--eval-every", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2, help="of each campaign")
    parser.add_argument("--jobs", type=int, default=max(1, cores // 2), help="campaigns at once")
    parser.add_argument("--limit-s", type=float, default=86400.0, help="seconds for all campaigns")
    parser.add_argument("--dir", type=Path, default=Path("curriculum"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, as for agentrl run")
    options = parser.parse_args()
    options.dir = options.dir.absolute()
    asyncio.run(Campaigns(options).run())
    results = read_results(options)
    Console(stderr=True, width=120).print(show(results, options.rates, options.seeds))
    text = json.dumps({"benchmark": "curriculum", "results": results})
    if options.out is not None:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

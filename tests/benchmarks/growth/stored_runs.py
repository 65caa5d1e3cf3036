"""What reading and writing a run's store costs over the rollouts in it.

A rollout has six turns in two branches: 3,000 tokens of prompt, then 300 new ones and 200 sampled
ones a turn, a sub-agent's two turns among them, and 2 kB of text a turn; a group shares its prompt.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from runners.observe.export.run_dump import dump
from runners.observe.live.status import read_status
from runners.observe.report.page import write_report
from runners.records.record import IdArray, Turn
from runners.records.store.run_store import RunStore
from tests.benchmarks.growth.curve import Curve
from tests.benchmarks.growth.page_opening import BROWSER, copy_page, running_browser
from tests.fakes.records import CONFIG, a_rollout, a_turn

WRITTEN = 250
"""Rollouts that are added to a store of a size, to measure what one more costs there."""

PAGE = Path("dump") / "trajectories.html"
"""Page of a run, in its directory."""

COPIES = (1, 4, 20)
"""Of the smallest page, for the browser: a page of 10,000 is not written for it."""

PARENTS = (None, 0, None, 2, 1, 4)
"""Turns 2 and 3 are a sub-agent's."""

Reading = Callable[[Path], object]


def draw_ids(rng: np.random.Generator, count: int) -> IdArray:
    """Return token ids as frequent as those of texts are (Zipf)."""
    return (rng.zipf(1.2, count) % 150_000).astype(np.int32)


def session(session_id: str, task: IdArray, rng: np.random.Generator) -> list[Turn]:
    """Return the turns of a rollout; ``task``: its first prompt."""
    turns: list[Turn] = []
    for index, parent in enumerate(PARENTS):
        agent = index in (2, 3)
        before = None if parent is None else turns[parent]
        kept = 0 if before is None else before.prompt_kept + len(before.prompt_new) + 200
        turn = a_turn(
            session_id,
            index,
            parent=parent,
            prompt_kept=kept,
            prompt_new=task if parent is None else draw_ids(rng, 300),
            output_ids=draw_ids(rng, 200),
            output_logprobs=-rng.exponential(0.3, 200).astype(np.float32),
            started_at=1000.0 + index,
            request={"messages": [{"role": "user", "content": f"{index}: " + "line\n" * 300}]},
            reply={"role": "assistant", "content": "word " * 100},
        )
        if agent:
            turn = replace(
                turn, thread="agent-1", parent_thread="main", branch="subagent", segment=1
            )
        turns.append(turn)
    return turns


def fill(store: RunStore, rollouts: int, start: int = 0) -> None:
    """Store so many rollouts from a number on, eight to a group and 64 to a step."""
    rng = np.random.default_rng(start)
    for number in range(start, start + rollouts):
        rollout_id = f"train-{number // 64:06}-{number // 8 % 8:02}-{number % 8:02}"
        record = a_rollout(rollout_id, turns=6, sampled_tokens=1200, trained_tokens=1200)
        store.add_session(record.session_id, {})
        task = draw_ids(np.random.default_rng(number // 8), 3000)
        for turn in session(record.session_id, task, rng):
            store.add_turn(turn)
        store.put_rollout(record)


def decode(ids: Sequence[int]) -> str:
    """Decode as cheaply as can be: what a real tokenizer costs is not measured."""
    return "word " * len(ids)


def write(run_dir: Path, rollouts: int) -> tuple[float, float]:
    """Fill a store; return CPU milliseconds per rollout of the last ones, and kB of each."""
    with RunStore.create(run_dir, CONFIG) as store:
        fill(store, rollouts - WRITTEN)
        began = time.process_time()
        fill(store, WRITTEN, start=rollouts - WRITTEN)
        took = time.process_time() - began
    size = sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())
    return 1000 * took / WRITTEN, size / rollouts / 1000


def dump_as(name: str, run_dir: Path) -> object:
    """Write a run in one format, beside its store."""
    with RunStore.open(run_dir) as store:
        return dump(store, (run_dir / PAGE).parent, formats=(name,), decode=decode)


def dump_jsonl(run_dir: Path) -> object:
    """Write JSONL."""
    return dump_as("jsonl", run_dir)


def dump_html(run_dir: Path) -> object:
    """Write the page."""
    return dump_as("html", run_dir)


def report(run_dir: Path) -> object:
    """Write the report."""
    with tempfile.TemporaryDirectory() as folder:
        return write_report(run_dir, Path(folder) / "report.html")


READINGS: dict[str, Reading] = {
    "status": read_status,
    "report": report,
    "dump jsonl": dump_jsonl,
    "dump html": dump_html,
}


def read(name: str, small: Path, run_dirs: Sequence[Path]) -> list[tuple[float, float]]:
    """Return CPU seconds of a reading of each run, smallest first, and the process's peak memory
    after it, in MB; before them a ``small`` run is read, which loads what that imports.
    """
    reading, found = READINGS[name], []
    reading(small)
    for run_dir in run_dirs:
        began = time.process_time()
        reading(run_dir)
        found.append((time.process_time() - began, _peak_mb()))
    return found


def measure_stored_runs(directory: Path, sizes: Sequence[int]) -> Iterator[Curve]:
    """Yield the curves of store, status, report and dumps; each reading has its own process."""
    runs = {size: directory / f"run-{size}" for size in (WRITTEN, *sizes)}
    written = {size: write(run_dir, size) for size, run_dir in runs.items()}
    for index, cost in enumerate(("CPU ms per rollout", "kB per rollout")):
        points = tuple((size, written[size][index]) for size in sizes)
        yield Curve("store", cost, "rollouts in the store", 0, points)
    spawn = multiprocessing.get_context("spawn")
    for name in READINGS:
        with ProcessPoolExecutor(1, spawn) as pool:
            costs = pool.submit(read, name, runs[WRITTEN], [runs[size] for size in sizes]).result()
        for index, (cost, limit) in enumerate((("CPU s", 1), ("peak memory, MB", 0))):
            found = tuple((size, each[index]) for size, each in zip(sizes, costs, strict=True))
            yield Curve(name, cost, "rollouts in the run", limit, found)
    if shutil.which(BROWSER[0]):
        yield from asyncio.run(measure_opening(directory, runs[sizes[0]] / PAGE, sizes[0]))


async def measure_opening(directory: Path, page: Path, rollouts: int) -> list[Curve]:
    """Return the seconds by the clock until a browser has drawn the list and the overview of a
    page, and until it has drawn the last rollout; the pages are copies of one of so many rollouts.
    """
    first, last = [], []
    async with running_browser(directory / "profile") as browser:
        await browser.measure(page)  # its own start
        for copies in COPIES:
            large = directory / f"page-{copies}.html"
            copy_page(page, copies, large)
            opening = await browser.measure(large)
            first.append((copies * rollouts, opening.first))
            last.append((copies * rollouts, opening.last))
    return [
        Curve("page", "s to list and overview", "rollouts in the page", 0, tuple(first)),
        Curve("page", "s to the last rollout", "rollouts in the page", 1, tuple(last)),
    ]


def _peak_mb() -> float:
    """Return the greatest memory of this process; getrusage would count that of its parent, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024

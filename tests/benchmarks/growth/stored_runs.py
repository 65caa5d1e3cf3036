"""What reading and writing a run's store costs over the rollouts in it."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from runners.export.dump import dump
from runners.observe.status import read_status
from runners.report.page import write_report
from runners.store.run_store import RunStore
from tests.benchmarks.bench_dump import decode, fill
from tests.benchmarks.growth.curve import Curve
from tests.fakes.records import CONFIG

WRITTEN = 250
"""Rollouts that are added to a store of a size, to measure what one more costs there."""

Reading = Callable[[Path], object]


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
    """Write a run in one format."""
    with RunStore.open(run_dir) as store, tempfile.TemporaryDirectory() as folder:
        return dump(store, Path(folder), formats=(name,), decode=decode)


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


def read(name: str, small: Path, run_dir: Path) -> tuple[float, float]:
    """Return CPU seconds of a reading, and MB that it adds to the peak memory after the same of a
    ``small`` run, which loads what it imports.
    """
    reading = READINGS[name]
    reading(small)
    before, began = _peak_mb(), time.process_time()
    reading(run_dir)
    return time.process_time() - began, _peak_mb() - before


def measure_stored_runs(directory: Path, sizes: Sequence[int]) -> Iterator[Curve]:
    """Yield the curves of store, status, report and dumps; each reading has its own process."""
    runs = {size: directory / f"run-{size}" for size in (WRITTEN, *sizes)}
    written = {size: write(run_dir, size) for size, run_dir in runs.items()}
    for index, cost in enumerate(("CPU ms per rollout", "kB per rollout")):
        points = tuple((size, written[size][index]) for size in sizes)
        yield Curve("store", cost, "rollouts in the store", 0, points)
    spawn = multiprocessing.get_context("spawn")
    for name in READINGS:
        costs = []
        for size in sizes:
            with ProcessPoolExecutor(1, spawn) as pool:
                costs.append(pool.submit(read, name, runs[WRITTEN], runs[size]).result())
        for index, (cost, limit) in enumerate((("CPU s", 1), ("peak memory, +MB", 0))):
            found = tuple((size, each[index]) for size, each in zip(sizes, costs, strict=True))
            yield Curve(name, cost, "rollouts in the run", limit, found)
    if shutil.which("chromium"):
        yield measure_opening(directory, {size: runs[size] for size in sizes})


def measure_opening(directory: Path, runs: dict[int, Path]) -> Curve:
    """Return the seconds by the clock until a browser has opened the page of a run, drawn the list
    and the overview, without those of its own start.
    """
    points = []
    for size, run_dir in runs.items():
        with RunStore.open(run_dir) as store:
            dump(store, directory / f"page-{size}", formats=("html",), decode=decode)
        empty = _open("about:blank", directory)
        page = (directory / f"page-{size}" / "trajectories.html").as_uri()
        points.append((size, _open(page, directory) - empty))
    return Curve("page", "s to open", "rollouts in the page", 1, tuple(points))


def _open(address: str, directory: Path) -> float:
    """Return the seconds until a browser has shown a page, and has nothing left to do."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={directory / 'profile'}", "--window-size=1200,800"]
    began = time.perf_counter()
    shown = subprocess.run(
        [*command, f"--screenshot={directory / 'page.png'}", address],
        capture_output=True,
        check=True,
    )
    assert shown.returncode == 0
    return time.perf_counter() - began


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

"""The store: what one durable turn costs in time and bytes, alone and beside a busy driver.

    python -m tests.benchmarks.bench_store

A turn is as in a default campaign: 300 new prompt tokens, 60 sampled, 1.5 kB of request and reply.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from runners.observe.export.dump import dump
from runners.records.store.run_store import RunStore
from runners.system.processes.ledger import Ledger
from tests.fakes.records import CONFIG, a_rollout, a_turn

TURNS_PER_SESSION = 10


def write_turns(store: RunStore, sessions: int, prefix: str) -> np.ndarray:
    """Store so many sessions of ten turns; returns the microseconds of each ``add_turn``."""
    ids = np.arange(300, dtype=np.int32)
    texts = {"messages": [{"role": "user", "content": "x" * 1000}]}
    reply = {"role": "assistant", "content": "y" * 400}
    took = []
    for session in range(sessions):
        session_id = f"{prefix}-{session:06}-00-00-a0"
        store.add_session(session_id, {})
        for index in range(TURNS_PER_SESSION):
            turn = a_turn(
                session_id,
                index,
                prompt_kept=360 * index,
                prompt_new=ids,
                output_ids=ids[:60],
                output_logprobs=np.full(60, -0.5, np.float32),
                request=texts,
                reply=reply,
            )
            started = time.perf_counter()
            store.add_turn(turn)
            took.append((time.perf_counter() - started) * 1e6)
    return np.array(took)


def drive(run_dir: Path, begun: Event, stop: Event) -> None:
    """Put rollouts until told to stop, as fast as the store takes them."""
    with RunStore.open(run_dir) as store:
        number = 0
        while not stop.is_set():
            store.put_rollout(a_rollout(f"eval-{number:06}-00-00"))
            number += 1
            begun.set()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=300)
    sessions = parser.parse_args().sessions
    table = Table(title=f"store, {sessions * TURNS_PER_SESSION:,} turns", title_justify="left")
    for column in ("", "median", "p99"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder, RunStore.create(Path(folder), CONFIG) as store:
        alone = write_turns(store, sessions, "train")
        store.query("PRAGMA wal_checkpoint(TRUNCATE)")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        started = time.perf_counter()
        for session in range(sessions):
            store.put_rollout(a_rollout(f"train-{session:06}-00-00", sampled_tokens=600))
        put_us = (time.perf_counter() - started) / sessions * 1e6
        ledger, started = Ledger(store), time.perf_counter()
        for session in range(sessions):
            ledger.register("sandbox", f"train-{session:06}-00-00-a0")
        for session in range(sessions):
            ledger.unregister("sandbox", f"train-{session:06}-00-00-a0")
        ledger_us = (time.perf_counter() - started) / sessions / 2 * 1e6
        started = time.perf_counter()
        report = dump(store, Path(folder) / "dump")
        dump_s = time.perf_counter() - started
        begun, stop = multiprocessing.Event(), multiprocessing.Event()
        driver = multiprocessing.Process(target=drive, args=(Path(folder), begun, stop))
        driver.start()
        begun.wait()
        beside = write_turns(store, sessions, "busy")
        stop.set()
        driver.join()
    for name, took in (("add_turn", alone), ("add_turn beside a writing driver", beside)):
        p50, p99 = np.percentile(took, [50, 99])
        table.add_row(name, f"{p50:.0f} µs", f"{p99:.0f} µs")
    table.add_row("bytes per turn", f"{size / len(alone):,.0f}", "")
    table.add_row("put_rollout (mean)", f"{put_us:.0f} µs", "")
    table.add_row("ledger: enter or leave (mean)", f"{ledger_us:.0f} µs", "")
    table.add_row("dump, rollouts per second", f"{report.rollouts / dump_s:,.0f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()

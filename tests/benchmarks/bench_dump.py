"""The export: MB/s and rollouts/s of each format, and what they add to the peak memory.

    python -m tests.benchmarks.bench_dump

A rollout has six turns in two branches: 3,000 tokens of prompt, then 300 new ones and 200 sampled
ones a turn, a sub-agent's two turns among them, and 2 kB of text a turn; a group shares its prompt.
MB are those written; parquet's and html's are compressed.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from runners.observe.export.dump import dump
from runners.observe.export.formats import FORMATS
from runners.records.record import IdArray, Turn
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout, a_turn

PARENTS = (None, 0, None, 2, 1, 4)
"""Turns 2 and 3 are a sub-agent's."""


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=500)
    rollouts = parser.parse_args().rollouts
    table = Table(title=f"export of {rollouts} rollouts × 6 turns", title_justify="left")
    for column in ("format", "MB", "seconds", "MB/s", "rollouts/s", "peak RSS +MB"):
        table.add_column(column, justify="right" if column != "format" else "left")
    with tempfile.TemporaryDirectory() as folder, RunStore.create(Path(folder), CONFIG) as store:
        fill(store, rollouts)
        for name in FORMATS:
            dump(store, Path(folder) / "warm", formats=(name,), decode=decode)  # imports
            before, started = _peak_mb(), time.perf_counter()
            report = dump(store, Path(folder) / "dump", formats=(name,), decode=decode)
            took, size = time.perf_counter() - started, report.bytes / 1e6
            table.add_row(
                name,
                f"{size:,.1f}",
                f"{took:.2f}",
                f"{size / took:,.0f}",
                f"{rollouts / took:,.0f}",
                f"{_peak_mb() - before:.0f}",
            )
    Console().print(table)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

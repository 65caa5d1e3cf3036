"""Pass@k of the tasks that an evaluation has graded so far, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runners.observe.figures.statistics import Interval, pass_at_k, task_interval
from runners.records.store import RunStore


@dataclass(frozen=True, slots=True)
class PassRate:
    """An estimate of pass@k."""

    k: int
    value: float
    interval: Interval
    """95 %, a bootstrap over tasks."""
    tasks: int
    """Those with k graded rollouts or more."""


def estimate_passes(counts: Iterable[tuple[int, int]], attempts: int) -> Iterator[PassRate]:
    """Yield pass@1 to pass@``attempts`` of tasks (graded, solved), as far as some have k graded."""
    tasks = list(counts)
    for k in range(1, attempts + 1):
        values = [pass_at_k(graded, solved, k) for graded, solved in tasks if graded >= k]
        interval = task_interval(values)
        if interval is not None:
            yield PassRate(k, sum(values) / len(values), interval, len(values))


def read_passes(store: RunStore) -> list[PassRate]:
    """Return pass@k of an evaluation's store; empty for a campaign, and before the first grade."""
    if not store.state().info.get("benchmark"):
        return []
    counts = store.query(
        "SELECT count(solved), sum(solved) FROM rollout WHERE counts AND split = 'eval' "
        "AND solved IS NOT NULL GROUP BY group_index"
    )
    attempts = int(store.config().get("eval", {}).get("attempts_per_task", 1))
    return list(estimate_passes([(graded, solved) for graded, solved in counts], attempts))


def read_run_passes(run_dir: Path) -> list[PassRate]:
    """Return pass@k of the evaluation in a directory; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        return read_passes(store)

"""Reads the solve rate of every training task from a run's store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from runners.store.run_store import RunStore


@dataclass(frozen=True, slots=True)
class TaskRate:
    """A training task, over all steps that worked on it."""

    task_id: str
    steps: int
    """Steps in which one of its rollouts was graded."""
    graded: int
    solved: int
    last_step: int
    last_rate: float
    """Solve rate of its rollouts in the last of these steps."""

    @property
    def rate(self) -> float:
        """Share of its graded rollouts that solved it."""
        return self.solved / self.graded


def read_task_rates(store: RunStore) -> list[TaskRate]:
    """Return the tasks with a graded rollout, the least solved first, then by id."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for task, step, graded, solved in store.task_counts():
        if graded:
            found[task].append((step, graded, solved))
    rates = [
        TaskRate(
            task,
            steps=len(rows),
            graded=sum(graded for _, graded, _ in rows),
            solved=sum(solved for _, _, solved in rows),
            last_step=rows[-1][0],
            last_rate=rows[-1][2] / rows[-1][1],
        )
        for task, rows in found.items()
    ]
    return sorted(rates, key=lambda each: (each.rate, -each.graded, each.task_id))


def count_tasks(rates: Iterable[TaskRate]) -> dict[str, int]:
    """Return how many tasks were tried, and how many of them never and always solved, in the last
    step that worked on each: ``{"tried": …, "never_solved": …, "always_solved": …}``.
    """
    last = [each.last_rate for each in rates]
    return {"tried": len(last), "never_solved": last.count(0.0), "always_solved": last.count(1.0)}

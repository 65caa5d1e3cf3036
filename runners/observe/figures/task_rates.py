"""Reads the solve rate of every task from a run's store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from runners.records.store import RunStore


@dataclass(frozen=True, slots=True)
class TaskRate:
    """A task, over all steps that worked on it, or all evaluations that measured it."""

    task_id: str
    counts: tuple[tuple[int, int, int], ...]
    """(step, graded, solved) of each step in which one of its rollouts was graded, in order."""

    @property
    def steps(self) -> int:
        """Number of these steps."""
        return len(self.counts)

    @property
    def graded(self) -> int:
        """Its graded rollouts."""
        return sum(graded for _, graded, _ in self.counts)

    @property
    def solved(self) -> int:
        """Those of them that solved it."""
        return sum(solved for _, _, solved in self.counts)

    @property
    def rate(self) -> float:
        """Share of its graded rollouts that solved it."""
        return self.solved / self.graded

    @property
    def last_step(self) -> int:
        """The last of the steps."""
        return self.counts[-1][0]

    @property
    def last_rate(self) -> float:
        """Solve rate of its rollouts in the last of the steps."""
        _, graded, solved = self.counts[-1]
        return solved / graded


def read_task_rates(store: RunStore, split: str = "train") -> list[TaskRate]:
    """Return a split's tasks with a graded rollout, the least solved first, then by id."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for task, step, graded, solved in store.task_counts(split=split):
        if graded:
            found[task].append((step, graded, solved))
    rates = [TaskRate(task, tuple(rows)) for task, rows in found.items()]
    return sorted(rates, key=lambda each: (each.rate, -each.graded, each.task_id))


def read_examples(store: RunStore, split: str) -> dict[str, str]:
    """Return a rollout of each task of a split: the newest that does not solve it, else the newest.

    Ids of one split are in the order of their steps.
    """
    rows = store.query(
        "SELECT task_id, coalesce(max(CASE WHEN solved = 0 THEN rollout_id END), max(rollout_id)) "
        "FROM rollout WHERE counts AND split = ? AND solved IS NOT NULL GROUP BY task_id",
        (split,),
    )
    return {task: rollout for task, rollout in rows}


def count_tasks(rates: Iterable[TaskRate]) -> dict[str, int]:
    """Return how many tasks were tried, and how many of them never and always solved, in the last
    step that worked on each: ``{"tried": …, "never_solved": …, "always_solved": …}``.
    """
    last = [each.last_rate for each in rates]
    return {"tried": len(last), "never_solved": last.count(0.0), "always_solved": last.count(1.0)}

"""Compare two runs task by task: a paired test over the tasks that both were measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from runners.observe.figures.statistics import Interval, bootstrap_interval
from runners.records.store import RunStore

FLIPS = 20_000
"""Random sign flips; with so many a p of 0.05 is exact to 0.003."""
_EXACT = 14
"""Tasks that differ, up to which all sign flips are tried."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts on one task."""

    graded: int
    solved: int
    example: str = ""
    """The newest rollout whose verdict is that of most of them."""

    @property
    def rate(self) -> float:
        """Share of the graded rollouts that solve it."""
        return self.solved / self.graded

    @property
    def is_solved(self) -> bool:
        """True if most of them solve it."""
        return 2 * self.solved > self.graded


@dataclass(frozen=True, slots=True)
class PairedResult:
    """A run against another one, over the tasks that both have."""

    run: str
    against: str
    tasks: int
    difference: float
    """Mean over tasks of the difference of their solve rates."""
    interval: Interval
    """95 %, a bootstrap over tasks."""
    p: float
    """Two-sided, of a permutation test: signs of the tasks' differences are flipped."""
    gained: list[str]
    """Tasks that most rollouts solve here, and not there."""
    lost: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return asdict(self)


def read_verdicts(store: RunStore) -> dict[str, Verdicts]:
    """Return the verdicts by task of a run's last finished evaluation, or of a measurement."""
    finished = store.evaluations()
    newest = "(SELECT max(step) FROM rollout WHERE split = 'eval')"
    step = str(finished[-1].step) if finished else newest
    rows = store.query(
        "SELECT task_id, count(solved), sum(solved), "
        "max(CASE WHEN solved = 1 THEN rollout_id END), "
        "max(CASE WHEN solved = 0 THEN rollout_id END) "
        "FROM rollout WHERE counts AND split = 'eval' "
        f"AND solved IS NOT NULL AND step = {step} GROUP BY task_id ORDER BY task_id"
    )
    found = {}
    for task, graded, solved, solving, failing in rows:
        verdicts = Verdicts(graded, solved)
        found[task] = replace(verdicts, example=solving if verdicts.is_solved else failing)
    return found


def compare_tasks(
    run: str, ours: Mapping[str, Verdicts], against: str, theirs: Mapping[str, Verdicts]
) -> PairedResult | None:
    """Return the paired comparison of two runs; None if they have no task in common."""
    names = sorted(ours.keys() & theirs.keys())
    differences = [ours[name].rate - theirs[name].rate for name in names]
    interval = bootstrap_interval(differences)
    if interval is None:
        return None
    return PairedResult(
        run=run,
        against=against,
        tasks=len(names),
        difference=sum(differences) / len(differences),
        interval=interval,
        p=flip_signs(differences),
        gained=[n for n in names if ours[n].is_solved and not theirs[n].is_solved],
        lost=[n for n in names if theirs[n].is_solved and not ours[n].is_solved],
    )


def flip_signs(differences: Sequence[float]) -> float:
    """Return the two-sided p of the mean of paired differences, by flips of their signs.

    If the runs are equally good each difference might as well have the other sign (Fisher's
    randomisation test). Exact for few tasks that differ, else by random flips of a fixed seed.
    """
    values = np.array([value for value in differences if value], np.float64)
    if not len(values):
        return 1.0
    if len(values) <= _EXACT:
        bits = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        drawn = 0
    else:
        bits = np.random.default_rng(0).integers(2, size=(FLIPS, len(values)))
        drawn = 1  # what was seen is one of the flips, so that p is never 0
    sums = np.abs((1 - 2 * bits) @ values)
    as_far = int((sums >= abs(values.sum()) - 1e-12).sum())
    return (as_far + drawn) / (len(bits) + drawn)

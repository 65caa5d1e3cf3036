"""Limits of an asynchronous campaign, and the rule that no group of rollouts misses its deadline.

Invariant: a group is trained at most ``staleness`` updates after the weights of its oldest rollout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conf.sections.run import FIXED_STALENESS, OverlapName


@dataclass(frozen=True, slots=True)
class OverlapLimits:
    """Bounds of how far rollouts run ahead of training; ValueError if they contradict."""

    mode: OverlapName
    """``none``: rollouts and training take turns. ``step``: the groups of the next step run while a
    step is trained, and weights change when both are done. ``stream``: groups run across updates.
    """
    groups: int
    """Groups of a batch, B: what one step trains on."""
    batches: int
    """Batches of the run."""
    staleness: int = 0
    """Most updates between a group's weights and its training, η; 0 in ``none``, 1 in ``step``."""
    window: int = 0
    """Batches that are admitted beyond the next one, w ≤ η; the same numbers in those modes."""
    spares: int = 0
    """Most groups without signal that are replaced while a batch gathers."""

    def __post_init__(self) -> None:
        if self.groups < 1 or min(self.batches, self.window, self.spares) < 0:
            raise ValueError(f"groups must be at least 1, the others at least 0: {self}")
        fixed = FIXED_STALENESS.get(self.mode)
        if fixed is not None and (self.staleness, self.window) != (fixed, fixed):
            raise ValueError(f"mode {self.mode} needs staleness and window {fixed}: {self}")
        if self.window > self.staleness:
            raise ValueError(f"window must not be greater than staleness: {self}")


def meets_deadlines(versions: Iterable[int], first: int, limits: OverlapLimits) -> bool:
    """Return whether groups sampled by weights ``versions`` can all be trained in time, by a batch
    of B groups at each of the weights from ``first`` on.

    With deadlines version + η that is so exactly if for all j = 0 … η + 1

        #{g : version(g) + η < first + j} ≤ B · j

    since training the oldest first then works (earliest deadline first, Jackson 1955), and since
    more groups than B · j cannot be trained by j batches.
    """
    late = [0] * (limits.staleness + 2)
    for version in versions:
        # The least j for which the deadline has passed; groups of newer weights are in time.
        j = max(version + limits.staleness + 1 - first, 0)
        if j < len(late):
            late[j] += 1
    total = 0
    for j, count in enumerate(late):
        total += count
        if total > limits.groups * j:
            return False
    return True

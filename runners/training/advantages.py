"""GRPO's advantage: a rollout's reward compared with those of the other rollouts of its task.

Invariant: a rollout without a grade gets no advantage and moves nobody else's; the advantages of a
group are computed once, when its rollouts are complete.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from conf.schema import Config
from runners.trajectory.record import RolloutRecord

STD_FLOOR = 1e-6
"""Keeps the division finite; groups with a spread below it carry no signal and get exactly 0."""


def compute_group_advantages(
    rewards: Sequence[float | None], *, min_group: int, normalize_std: bool
) -> list[float | None]:
    """Return one advantage per member of a group, in order.

    Over the graded members' rewards r, ``A_i = (r_i − mean(r)) / std(r)`` with the population's
    standard deviation: Group Relative Policy Optimization, Shao et al. 2024 (arXiv 2402.03300).
    Without ``normalize_std`` there is no division: Dr. GRPO, Liu et al. 2025 (arXiv 2503.20783).

    ``None`` stands for a rollout without a grade: it gets ``None`` back. A group with fewer than
    ``min_group`` graded members yields only ``None``; one whose rewards are all equal yields
    exactly 0.0 for every graded member. ``[1, 0, None]`` yields ``[1.0, -1.0, None]``.
    """
    graded = [reward for reward in rewards if reward is not None]
    if len(graded) < min_group:
        return [None] * len(rewards)
    mean = math.fsum(graded) / len(graded)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in graded) / len(graded))
    if std < STD_FLOOR:
        return [None if reward is None else 0.0 for reward in rewards]
    scale = 1.0 / std if normalize_std else 1.0
    return [None if reward is None else (reward - mean) * scale for reward in rewards]


class StepGroups:
    """The rollouts of a training step with their advantages; grows by whole groups."""

    def __init__(self, config: Config, records: Iterable[RolloutRecord] = ()) -> None:
        self._config = config
        self.advantages: list[tuple[RolloutRecord, float | None]] = []
        """Every rollout with its advantage, group by group; None: not trained."""
        self.without_baseline: list[int] = []
        """Groups with fewer than ``trainer.min_group`` graded rollouts."""
        self.flat: list[int] = []
        """Groups whose rewards are all equal. Advantage 0; None with ``rollout.replace_flat``,
        which takes them out of the averages (DAPO's dynamic sampling, arXiv 2503.14476).
        """
        self.add(records)

    def add(self, records: Iterable[RolloutRecord]) -> None:
        """Add the rollouts of whole groups and compute their advantages."""
        groups: dict[int, list[RolloutRecord]] = defaultdict(list)
        for record in records:
            groups[record.group].append(record)
        for group, members in groups.items():
            advantages = compute_group_advantages(
                [record.reward for record in members],
                min_group=self._config.trainer.min_group,
                normalize_std=self._config.trainer.normalize_std,
            )
            graded = [advantage for advantage in advantages if advantage is not None]
            if not graded:
                self.without_baseline.append(group)
            elif not any(graded):
                self.flat.append(group)
                if self._config.rollout.replace_flat:
                    advantages = [None] * len(members)
            self.advantages += zip(members, advantages, strict=True)

    @property
    def untrainable(self) -> int:
        """Number of groups that spare ones should replace."""
        flat = len(self.flat) if self._config.rollout.replace_flat else 0
        return len(self.without_baseline) + flat

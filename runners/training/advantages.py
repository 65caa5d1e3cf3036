"""GRPO's advantage: a rollout's reward against the other rollouts of its task.

Group Relative Policy Optimization, Shao et al. 2024 (arXiv 2402.03300); without the division by the
standard deviation it is Dr. GRPO, Liu et al. 2025 (arXiv 2503.20783).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

STD_FLOOR = 1e-6
"""Keeps the division finite; groups with a spread below it carry no signal and get exactly 0."""


def group_advantages(
    rewards: Sequence[float | None], *, min_group: int, normalize_std: bool
) -> list[float | None]:
    """Return one advantage per member of a group, in order.

    ``None`` stands for a rollout without a grade: it gets ``None`` back and does not touch the
    baseline. A group with fewer than ``min_group`` graded members yields only ``None``. A group
    whose rewards are all equal yields exactly 0.0 for every graded member.
    """
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < min_group:
        return [None] * len(rewards)
    mean = math.fsum(valid) / len(valid)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in valid) / len(valid))
    if std < STD_FLOOR:
        return [None if reward is None else 0.0 for reward in rewards]
    scale = 1.0 / std if normalize_std else 1.0
    return [None if reward is None else (reward - mean) * scale for reward in rewards]

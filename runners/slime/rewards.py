"""Rewards as slime's trainer takes them: GRPO by prompt group, a rollout counting once.

slime compares all samples of a batch, or cuts them into groups by their number; with fan-out both
give rollouts of many segments more weight, and compare rollouts of different tasks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from runners.training.advantages import group_advantages

KEY = "agentrl"
"""Under it stands in a sample's ``metadata`` what this package knows of it."""


def raw_and_trained(
    samples: Sequence[Any], *, min_group: int, normalize_std: bool
) -> tuple[list[float], list[float]]:
    """Return the raw rewards, and each sample's share of its rollout's advantage.

    A rollout without a grade is in no baseline and gets 0.0. Its raw reward, which slime only
    reports and must be a number, is its group's mean: it moves no average. Raises ValueError for a
    sample that ``generate`` did not make.
    """
    groups: dict[int, dict[int, float | None]] = defaultdict(dict)
    for sample in samples:
        about = _about(sample)
        reward = float(sample.reward) if about["graded"] else None
        groups[sample.group_index][sample.rollout_id] = reward
    advantages: dict[tuple[int, int], float] = {}
    for group, rewards in groups.items():
        found = group_advantages(
            list(rewards.values()), min_group=min_group, normalize_std=normalize_std
        )
        for rollout, advantage in zip(rewards, found, strict=True):
            advantages[group, rollout] = advantage or 0.0
    everywhere = _mean(reward for rewards in groups.values() for reward in rewards.values())
    means = {group: _mean(rewards.values()) for group, rewards in groups.items()}
    raw, trained = [], []
    for sample in samples:
        about, group = _about(sample), sample.group_index
        mean = means[group] if means[group] is not None else everywhere
        raw.append(float(sample.reward) if about["graded"] else mean or 0.0)
        trained.append(advantages[group, sample.rollout_id] * about["share"])
    return raw, trained


def _about(sample: Any) -> dict[str, Any]:
    about = (sample.metadata or {}).get(KEY)
    if about is None:
        raise ValueError(
            f"sample {sample.index} was not made by runners.slime.entry_points.generate: set "
            "--custom-generate-function-path, or leave out --custom-reward-post-process-path"
        )
    found: dict[str, Any] = about
    return found


def _mean(rewards: Iterable[float | None]) -> float | None:
    graded = [reward for reward in rewards if reward is not None]
    return math.fsum(graded) / len(graded) if graded else None

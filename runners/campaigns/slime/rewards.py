"""Compute the rewards that slime trains with: advantages by group, a rollout counting once.

slime itself compares all samples of a batch, or cuts them into groups by their number; with fan-out
both give rollouts of many segments more weight, and compare rollouts of different tasks.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from runners.system.plugins import PluginFailedError
from runners.training.advantages import (
    AdvantageEstimator,
    compute_group_advantages,
    normalize_step,
    normalizes_step,
)

logger = logging.getLogger(__name__)
KEY = "agentrl"
"""Key of this package's own entry in a sample's ``metadata``."""


def compute_rewards(
    samples: Sequence[Any], estimator: AdvantageEstimator, *, min_group: int
) -> tuple[list[float], list[float]]:
    """Return the raw rewards, and each sample's share of its rollout's advantage.

    A rollout without a grade is in no baseline and gets 0.0. Its raw reward, which slime only
    reports and must be a number, is its group's mean: it moves no average. Raises ValueError for a
    sample that ``generate_rollout`` did not make.
    """
    groups: dict[int, dict[int, float | None]] = defaultdict(dict)
    parts: dict[int, dict[int, dict[str, float]]] = defaultdict(dict)
    for sample in samples:
        reward = float(sample.reward) if _metadata(sample)["graded"] else None
        groups[sample.group_index][sample.rollout_id] = reward
        parts[sample.group_index][sample.rollout_id] = _metadata(sample).get("parts", {})
    advantages: dict[tuple[int, int], float | None] = {}
    for group, rewards in groups.items():
        try:
            computed = compute_group_advantages(
                list(rewards.values()),
                estimator,
                min_group=min_group,
                parts=list(parts[group].values()),
            )
        except PluginFailedError as error:
            logger.warning("group %d is not trained: %s", group, error)
            computed = [None] * len(rewards)
        for rollout, advantage in zip(rewards, computed, strict=True):
            advantages[group, rollout] = advantage
    if normalizes_step(estimator):
        advantages = dict(zip(advantages, normalize_step([*advantages.values()]), strict=True))
    overall_mean = _mean(reward for rewards in groups.values() for reward in rewards.values())
    means = {group: _mean(rewards.values()) for group, rewards in groups.items()}
    raw, trained = [], []
    for sample in samples:
        metadata, group = _metadata(sample), sample.group_index
        mean = means[group] if means[group] is not None else overall_mean
        raw.append(float(sample.reward) if metadata["graded"] else mean or 0.0)
        trained.append((advantages[group, sample.rollout_id] or 0.0) * metadata["share"])
    return raw, trained


def _metadata(sample: Any) -> dict[str, Any]:
    found: dict[str, Any] | None = (sample.metadata or {}).get(KEY)
    if found is None:
        raise ValueError(
            f"sample {sample.index} was not made by "
            "runners.campaigns.slime.entry_points.generate_rollout: "
            "set --rollout-function-path, or leave out --custom-reward-post-process-path"
        )
    return found


def _mean(rewards: Iterable[float | None]) -> float | None:
    graded = [reward for reward in rewards if reward is not None]
    return math.fsum(graded) / len(graded) if graded else None

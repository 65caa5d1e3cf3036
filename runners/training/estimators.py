"""Estimators of advantages: what a rollout's reward is compared with, each by its paper.

Invariant: an estimator is a pure function of rewards; equal rewards of a group yield exactly 0.0,
but for ``reinforce_pp``, which compares with the whole step, and ``rejection``, which compares with
nothing. A standard deviation is the
population's (divided by n, not n − 1) everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from conf.sections.plugin import PluginConfig
from conf.sections.training import PolicyGradientConfig
from runners.system.plugins import load_shared

STD_FLOOR = 1e-6
"""Keeps divisions finite; rewards with a spread below it carry no signal and get exactly 0."""


class AdvantageEstimator(Protocol):
    """Computes the advantages of one group: the graded rollouts of one task in one step."""

    def __call__(self, rewards: Sequence[float]) -> Sequence[float]:
        """Return one finite advantage per reward, in order; all 0 for a group without signal.

        It gets at least ``trainer.min_group`` rewards. Should it raise, the group is not trained.
        """
        ...


@dataclass(frozen=True, slots=True)
class GrpoEstimator:
    """``A_i = (r_i − mean(r)) / std(r)``: Group Relative Policy Optimization, Shao et al. 2024
    (arXiv 2402.03300).
    """

    normalize_std: bool = True
    """False: no division, as Dr. GRPO (Liu et al. 2025, arXiv 2503.20783)."""

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """Return the advantages; ``[1, 0]`` yields ``[1.0, -1.0]``."""
        return _scale(rewards, lambda mean, std: 1.0 / std if self.normalize_std else 1.0)


def estimate_rloo(rewards: Sequence[float]) -> list[float]:
    """Return ``A_i = r_i − mean of the others``: REINFORCE leave-one-out, Ahmadian et al. 2024
    (arXiv 2402.14740). ``[1, 0, 0]`` yields ``[1.0, -0.5, -0.5]``.
    """
    number = len(rewards)
    return _scale(rewards, lambda mean, std: number / (number - 1))


def estimate_max_rl(rewards: Sequence[float]) -> list[float]:
    """Return ``A_i = (r_i − mean(r)) / mean(r)``: maximum likelihood reinforcement learning, 2026
    (arXiv 2602.02710), whose weight of a task is the inverse of its solve rate.

    For rewards of 0 and 1 the sum over a group estimates the gradient of ``log p(solved)`` to the
    group's order. ``[1, 0, 0, 0]`` yields ``[3.0, -1.0, -1.0, -1.0]``. A group whose mean is not
    positive yields 0.
    """
    return _scale(rewards, lambda mean, std: 1.0 / mean if mean > STD_FLOOR else 0.0)


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlus:
    """REINFORCE++, Hu et al. 2025 (arXiv 2501.03262): rewards normalised over all rollouts of the
    step, see ``normalize_step``.
    """

    baseline: bool = False
    """Subtract the group's mean first (the paper's variant for several rollouts per task)."""

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """Return what is to be normalised over the step."""
        return _scale(rewards, lambda mean, std: 1.0) if self.baseline else list(rewards)


@dataclass(frozen=True, slots=True)
class RejectionSampling:
    """``A_i = 1`` if ``r_i ≥ least``, else 0: fine-tuning on the accepted rollouts, which with
    ``trainer.loss=reinforce`` is maximum likelihood. STaR, Zelikman et al. 2022 (arXiv 2203.14465);
    RAFT, Dong et al. 2023 (2304.06767); ReST-EM, Singh et al. 2023 (2312.06585).

    A rejected rollout stays in the averages: the update follows the gradient of the probability of
    an accepted one, divided by nothing.
    """

    least: float

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """Return the advantages; with ``least`` 1, ``[1, 0, 0]`` yields ``[1.0, 0.0, 0.0]``."""
        return [float(reward >= self.least) for reward in rewards]


@dataclass(frozen=True, slots=True)
class Gdpo:
    """GDPO, Liu et al. 2026 (arXiv 2601.05242): every part of the reward normalised within the
    group, ``A_i = Σ_k w_k (r_ik − mean_k) / std_k``, then their sum over the rollouts of the step,
    see ``normalize_step``. A part that is equal in a group has no say in it, and none outweighs
    another by its scale: their weights alone do.
    """

    weights: Mapping[str, float]
    """Of the parts, by name; 1 for one that is not there. Of each its size counts: a penalty is
    negative itself.
    """

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """Return what is to be normalised over the step, for rewards that have no parts."""
        return GrpoEstimator()(rewards)

    def compare_parts(self, parts: Sequence[Mapping[str, float]]) -> list[float]:
        """Return what is to be normalised over the step; a part that a rollout lacks is 0."""
        names = sorted({name for each in parts for name in each})
        compared = [
            (abs(self.weights.get(name, 1.0)), self([each.get(name, 0.0) for each in parts]))
            for name in names
        ]
        return [
            math.fsum(weight * values[index] for weight, values in compared)
            for index in range(len(parts))
        ]


def normalizes_step(estimator: AdvantageEstimator) -> bool:
    """Return whether the advantages of groups are to be normalised over the step."""
    return isinstance(estimator, ReinforcePlusPlus | Gdpo)


def normalize_step(values: Sequence[float | None]) -> list[float | None]:
    """Return ``(A_i − mean(A)) / std(A)`` over the rollouts of a step that have an advantage."""
    known = [value for value in values if value is not None]
    if not known:
        return list(values)
    normalized = iter(_scale(known, lambda mean, std: 1.0 / std))
    return [None if value is None else next(normalized) for value in values]


def _scale(rewards: Sequence[float], scale: Callable[[float, float], float]) -> list[float]:
    """Return the distances from the mean times ``scale(mean, std)``; 0.0 without a spread."""
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if std < STD_FLOOR:
        return [0.0] * len(rewards)
    factor = scale(mean, std)
    return [(reward - mean) * factor for reward in rewards]


def make_estimator(
    trainer: PolicyGradientConfig, part_weights: Mapping[str, float] = MappingProxyType({})
) -> AdvantageEstimator:
    """Return the estimator of ``trainer.advantage``; raises PluginError.

    ``part_weights``: of the reward's parts, ``conf.sections.task.find_part_weights``.
    """
    if isinstance(trainer.advantage, PluginConfig):
        found: AdvantageEstimator = load_shared(
            trainer.advantage, AdvantageEstimator, "trainer.advantage"
        )
        return found
    estimators: dict[str, AdvantageEstimator] = {
        "grpo": GrpoEstimator(trainer.normalize_std),
        "dr_grpo": GrpoEstimator(normalize_std=False),
        "rloo": estimate_rloo,
        "max_rl": estimate_max_rl,
        "gdpo": Gdpo(part_weights),
        "reinforce_pp": ReinforcePlusPlus(),
        "reinforce_pp_baseline": ReinforcePlusPlus(baseline=True),
        "rejection": RejectionSampling(trainer.accept_reward or 0.0),
    }
    return estimators[trainer.advantage]

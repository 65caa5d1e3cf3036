"""Advantages: a rollout's reward compared with those of the other rollouts of its task.

Invariant: a rollout without a grade gets no advantage and moves nobody else's; the advantages of a
group are computed once, when its rollouts are complete.

Estimators say what a reward is compared with, each by its paper: pure functions of rewards. Equal
rewards of a group yield exactly 0.0, but for ``reinforce_pp``, which compares with the whole step,
and ``rejection``, which compares with nothing. A standard deviation is the population's (divided by
n, not n − 1) everywhere.

Turn-level credit: the tokens of a turn answer for what was earned from that turn on. What turn t of
a rollout is worth is the reward less what earlier turns earned. It is compared with the same of the
other rollouts of the group at turn t, those included that had stopped before: they earn nothing
from there on but their rollout's own part. Invariant: a rollout's baseline is a function of the
others alone, whichever turns they reached, so the policy gradient is unbiased although the policy
chooses when to stop. A mean among the rollouts that reach turn t, the rollout itself included,
scales each turn's gradient by how many others reach it, which is a bias.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol

import numpy as np

from conf.schema import Config
from conf.sections.plugin import PluginConfig
from conf.sections.task import find_part_weights
from conf.sections.training import LocalTrainerConfig, PolicyGradientConfig, TrainerConfig
from runners.records.record import LogprobArray, RolloutRecord, Segment, Turn
from runners.system.plugins import PluginFailedError, check_number, describe_failure, load_shared

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


def credits_turns(trainer: TrainerConfig) -> bool:
    """Return whether ``trainer.credit`` is "turn"."""
    return isinstance(trainer, LocalTrainerConfig) and trainer.credit == "turn"


def compute_turn_credits(
    records: Sequence[RolloutRecord], estimator: AdvantageEstimator
) -> dict[str, list[float]]:
    """Return the advantages of the turns of a group's graded rollouts, by rollout and turn.

    Turn 0 has the rollout's own advantage, since all is still to be earned; the last number of a
    list also holds for all later turns. ``estimator``: linear in the rewards (rloo, dr_grpo).
    Rewards 1 and 0, of which turn 0 of the first has earned 0.5, yield with rloo ``[1.0, 0.5]``
    and ``[-1.0, -0.5]``.
    """
    graded = [record for record in records if record.reward is not None]
    turns = max((len(record.turn_rewards) for record in graded), default=0)
    to_go = [_reward_to_go(record, turns) for record in graded]
    by_turn = [estimator(rewards) for rewards in zip(*to_go, strict=True)]
    return {
        record.rollout_id: list(credits)
        for record, credits in zip(graded, zip(*by_turn, strict=True), strict=True)
    }


def _reward_to_go(record: RolloutRecord, turns: int) -> list[float]:
    """Return what is earned from each of ``turns`` turns on, and after them."""
    padded = [*record.turn_rewards, *[0.0] * (turns - len(record.turn_rewards))]
    reward = record.reward or 0.0
    return [reward - earned for earned in accumulate(padded, initial=0.0)]


def spread_over_tokens(
    credits: Sequence[float] | None, turns: Sequence[Turn]
) -> Callable[[Segment], LogprobArray | None]:
    """Return a function that gives the tokens that a segment sampled the advantages of their turns,
    float32 [T], 0.0 elsewhere; None without ``credits``.

    A turn is credited by its index in the session, whatever thread it is of: turns are counted as
    they are completed, so what a turn of a sub-agent may have caused comes after it.
    """

    def spread(segment: Segment) -> LogprobArray | None:
        if credits is None:
            return None
        found = np.zeros(len(segment.tokens), np.float32)
        for index in segment.own_turns:
            start = turns[index].prompt_tokens
            span = slice(start, start + turns[index].output_tokens)
            found[span] = credits[min(index, len(credits) - 1)]
        return found

    return spread


def compute_group_advantages(
    rewards: Sequence[float | None],
    estimator: AdvantageEstimator,
    *,
    min_group: int,
    parts: Sequence[Mapping[str, float]] = (),
) -> list[float | None]:
    """Return one advantage per member of a group, in order.

    ``None`` stands for a rollout without a grade: it gets ``None`` back and moves nobody else's. A
    group with fewer than ``min_group`` graded members yields only ``None``. With GRPO,
    ``[1, 0, None]`` yields ``[1.0, -1.0, None]``. ``parts``: those of each member's reward, which
    GDPO compares; without any in the group it compares the rewards. Raises PluginFailedError.
    """
    graded = [reward for reward in rewards if reward is not None]
    if len(graded) < min_group:
        return [None] * len(rewards)
    if isinstance(estimator, Gdpo) and any(parts):
        pairs = zip(parts, rewards, strict=True)
        computed = iter(estimator.compare_parts([each for each, r in pairs if r is not None]))
    else:
        computed = iter(_call(estimator, graded))
    return [None if reward is None else next(computed) for reward in rewards]


def _call(estimator: AdvantageEstimator, rewards: list[float]) -> list[float]:
    """Return an estimator's advantages; raises PluginFailedError if they are of no use."""
    name = "trainer.advantage"
    try:
        found = list(estimator(rewards))
    except (Exception, SystemExit) as error:
        raise describe_failure(name, error) from error
    if len(found) != len(rewards):
        raise PluginFailedError(f"{name} returned {len(found)} values for {len(rewards)} rewards")
    return [check_number(name, value) for value in found]


GroupKey = tuple[int, int]
"""The step for which a group was dealt, and its number there: in an asynchronous campaign groups of
several steps are trained together.
"""


def key_of(record: RolloutRecord) -> GroupKey:
    """Return the key of a rollout's group."""
    return record.step, record.group


class StepGroups:
    """The rollouts that are trained in one step, with their advantages; grows by whole groups.

    Everything is in the order of the groups' keys, whatever the order in which they came.
    """

    def __init__(self, config: Config, records: Iterable[RolloutRecord] = ()) -> None:
        self._config = config
        self._estimator = make_estimator(config.trainer, find_part_weights(config.reward))
        self._groups: dict[GroupKey, list[tuple[RolloutRecord, float | None]]] = {}
        """Every rollout with its advantage within the group; None: not trained."""
        self._without_baseline: set[GroupKey] = set()
        self._flat: set[GroupKey] = set()
        self._failed: dict[GroupKey, str] = {}
        self.turn_credits: dict[str, list[float]] = {}
        """Advantages of the turns of each rollout, see ``compute_turn_credits``; empty unless
        ``trainer.credit=turn``.
        """
        self.add(records)

    def add(self, records: Iterable[RolloutRecord]) -> None:
        """Add the rollouts of whole groups and compute their advantages."""
        groups: dict[GroupKey, list[RolloutRecord]] = defaultdict(list)
        for record in records:
            groups[key_of(record)].append(record)
        for group, members in groups.items():
            try:
                advantages = compute_group_advantages(
                    [record.reward for record in members],
                    self._estimator,
                    min_group=self._config.trainer.min_group,
                    parts=[record.reward_parts for record in members],
                )
            except PluginFailedError as error:
                self._failed[group] = str(error)
                advantages = [None] * len(members)
            graded = [advantage for advantage in advantages if advantage is not None]
            if graded and credits_turns(self._config.trainer):
                by_turn = compute_turn_credits(members, self._estimator)
                self.turn_credits |= by_turn
                graded += [credit for credits in by_turn.values() for credit in credits]
            if not graded:
                self._without_baseline.add(group)
            elif not any(graded) and self._estimator != ReinforcePlusPlus():
                self._flat.add(group)
                if self._config.rollout.replace_flat:
                    advantages = [None] * len(members)
            self._groups[group] = list(zip(members, advantages, strict=True))

    @property
    def without_baseline(self) -> list[int]:
        """Groups with too few grades (``trainer.min_group``), and those that ``failed``."""
        return sorted(group for _, group in self._without_baseline)

    @property
    def failed(self) -> dict[GroupKey, str]:
        """Groups whose advantages a plug-in did not compute, with the reason."""
        return dict(sorted(self._failed.items()))

    @property
    def flat(self) -> list[int]:
        """Groups whose advantages are all 0: their rewards are equal, or ``rejection`` accepts none
        of them. With ``rollout.replace_flat`` they have no advantage, which takes them out of the
        averages (DAPO's dynamic sampling, arXiv 2503.14476).
        """
        return sorted(group for _, group in self._flat)

    @property
    def without_signal(self) -> set[GroupKey]:
        """Groups that cannot move the policy: flat ones, and those without a baseline."""
        return self._flat | self._without_baseline

    @property
    def advantages(self) -> list[tuple[RolloutRecord, float | None]]:
        """Every rollout with its advantage, group by group; None: not trained."""
        members = [member for _, group in sorted(self._groups.items()) for member in group]
        if not normalizes_step(self._estimator):
            return members
        values = normalize_step([advantage for _, advantage in members])
        return [(record, value) for (record, _), value in zip(members, values, strict=True)]

    @property
    def replaceable(self) -> set[GroupKey]:
        """Groups that spare ones should replace."""
        flat = self._flat if self._config.rollout.replace_flat else set()
        return self._without_baseline | flat

    @property
    def untrainable(self) -> int:
        """Number of groups that spare ones should replace."""
        return len(self.replaceable)

"""Advantages: a rollout's reward compared with those of the other rollouts of its task.

Invariant: a rollout without a grade gets no advantage and moves nobody else's; the advantages of a
group are computed once, when its rollouts are complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from conf.schema import Config
from conf.sections.task import find_part_weights
from runners.records.record import RolloutRecord
from runners.system.plugins import PluginFailedError, check_number, describe_failure
from runners.training.estimators import (
    AdvantageEstimator,
    Gdpo,
    ReinforcePlusPlus,
    make_estimator,
    normalize_step,
    normalizes_step,
)
from runners.training.turn_credit import compute_turn_credits, credits_turns


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

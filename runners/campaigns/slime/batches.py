"""Gather the groups that slime trains together, as many as it wants.

slime counts rollouts, so that a batch has exactly ``run.tasks_per_step`` groups: those with a
signal first, in the order of their numbers, then those that nothing replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from conf.schema import Config
from runners.campaigns.group_runner import GroupRunner
from runners.campaigns.sampler import StepSampler
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.training.advantages import GroupKey, StepGroups, key_of

Group = list[RolloutRecord]


@dataclass(frozen=True, slots=True)
class GatheredBatch:
    """The rollouts of a training step, group by group."""

    step: int
    groups: list[Group]
    """Those that are trained."""
    left_out: list[Group]
    """Those without signal that others replaced; they belong to the step's statistics."""
    untrainable: frozenset[GroupKey]
    """Groups of ``groups`` that no spare one was left for."""
    ages: tuple[int, ...] = ()
    """Most updates between each group's weights and its training, where they are known."""

    @property
    def records(self) -> list[RolloutRecord]:
        """The rollouts of the step's statistics."""
        return [record for group in (*self.groups, *self.left_out) for record in group]


class Batches(Protocol):
    """A way to gather the batches of a job, in the order of their steps."""

    async def gather(self, step: int) -> GatheredBatch:
        """Return the batch of a step (from 1) once its rollouts are final; raises AgentrlError."""
        ...

    async def close(self) -> None:
        """End the rollouts of later batches."""
        ...


def choose_groups(config: Config, step: int, groups: Sequence[Group]) -> GatheredBatch:
    """Return the batch that ``groups`` make, which are at least as many as it has.

    Of more groups with a signal the first are trained: which these are does not depend on the order
    in which they became ready. The others are in no statistics either.
    """
    untrainable = StepGroups(config, [each for group in groups for each in group]).replaceable
    wanted = config.run.tasks_per_step
    order = sorted(groups, key=lambda group: (key_of(group[0]) in untrainable, key_of(group[0])))
    chosen, others = order[:wanted], order[wanted:]
    return GatheredBatch(
        step,
        sorted(chosen, key=lambda group: key_of(group[0])),
        [group for group in others if key_of(group[0]) in untrainable],
        frozenset(key_of(group[0]) for group in chosen) & untrainable,
    )


class StepBatches:
    """Batches of ``run.overlap=none`` and ``step``: all rollouts of one begin when slime asks for
    it. With ``step`` slime does so while it trains the batch before, and waits for it before new
    weights.
    """

    def __init__(
        self, config: Config, store: RunStore, sampler: StepSampler, runner: GroupRunner
    ) -> None:
        self._config = config
        self._store = store
        self._sampler = sampler
        self._runner = runner

    async def gather(self, step: int) -> GatheredBatch:
        """See ``Batches.gather``."""
        specs = await self._sampler.batch(step)
        self._store.begin_step(step, [spec.task.id for spec in specs if spec.member == 0])
        found = await self._runner.run_step(step, specs)
        groups: dict[GroupKey, Group] = defaultdict(list)
        for record, _ in found.advantages:
            groups[key_of(record)].append(record)
        return choose_groups(self._config, step, list(groups.values()))

    async def close(self) -> None:
        """See ``Batches.close``: there are none."""

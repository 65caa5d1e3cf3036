"""Rewards of stored rollouts by another rule, from their verdicts and their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from conf.schema import Config
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.rollouts.contract import (
    conclude,
    rebuild_result,
    rebuild_verdict,
    with_reward,
)
from runners.rollouts.reward import ComputeReward, make_reward
from runners.system.plugins import PluginFailedError
from runners.tasks.grading import RolloutResult


@dataclass(slots=True)
class Repayment:
    """Computes the rewards of a configuration; collects the failures of its plug-in."""

    config: Config
    failures: dict[str, str] = field(default_factory=dict)
    """Rollouts for which the plug-in gave no reward, with the reason; they have no advantage."""
    _compute: ComputeReward = field(init=False)

    def __post_init__(self) -> None:
        """Load the reward; raises PluginError."""
        self._compute = make_reward(self.config.reward)

    def pay(
        self, records: Sequence[RolloutRecord], results: Sequence[RolloutResult | None]
    ) -> list[RolloutRecord]:
        """Return the records with their rewards by this configuration, in order.

        ``results``: those of ``rebuild_results``. A rollout without one has no reward.
        """
        return asyncio.run(self._pay(records, results))

    async def _pay(
        self, records: Sequence[RolloutRecord], results: Sequence[RolloutResult | None]
    ) -> list[RolloutRecord]:
        slots = asyncio.Semaphore(self.config.rollout.concurrency)
        pairs = zip(records, results, strict=True)
        return await asyncio.gather(*(self._pay_one(*pair, slots) for pair in pairs))

    async def _pay_one(
        self, record: RolloutRecord, result: RolloutResult | None, slots: asyncio.Semaphore
    ) -> RolloutRecord:
        if result is None:
            return record
        try:
            async with slots:
                reward = await self._compute(result, self.config.rollout.deadlines.grade_s)
        except PluginFailedError as error:
            self.failures[record.rollout_id] = str(error)
            return replace(record, reward=None, reward_parts={}, turn_rewards=[])
        return with_reward(record, reward)


def rebuild_results(
    store: RunStore, records: Sequence[RolloutRecord]
) -> list[RolloutResult | None]:
    """Return what the reward of each rollout received, in order; None of one without a reward: it
    was not graded, and nothing here grades.
    """
    return [None if record.reward is None else _rebuild(store, record) for record in records]


def _rebuild(store: RunStore, record: RolloutRecord) -> RolloutResult:
    result = rebuild_result(record, store.session_summary(record.session_id))
    verdict = rebuild_verdict(record.verdict or {}, solved=bool(record.solved))
    return replace(result, outcome=conclude(result.outcome, verdict), verdict=verdict)

"""Rollouts in flight: bounded concurrency, fresh attempts after infrastructure failures, and a
circuit breaker.

Exactly one attempt of a rollout counts. A drain lets what is in flight finish and starts nothing
new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from conf.errors import AgentrlError
from runners.outcome import OutcomeClass
from runners.rollout import Attempt, RolloutSpec, RolloutTools, counted
from runners.taskgroup import task_group
from runners.trajectory.record import RolloutRecord


class BreakerOpen(AgentrlError):
    """Too many failures of one class in a row: going on would only waste rollouts."""


class Pool:
    """Runs batches of rollouts; used by one campaign on one event loop."""

    def __init__(
        self,
        tools: RolloutTools,
        *,
        concurrency: int,
        attempts: int,
        breaker: int,
        draining: asyncio.Event,
        on_done: Callable[[RolloutRecord], None],
    ) -> None:
        self._tools = tools
        self._concurrency = concurrency
        self._attempts = attempts
        self._breaker = Breaker(breaker)
        self._draining = draining
        self._on_done = on_done

    async def run(self, specs: Sequence[RolloutSpec]) -> list[RolloutRecord]:
        """Run every rollout and return its counting record, in any order.

        When draining, rollouts that were not started yet are left out. Raises BreakerOpen.
        """
        waiting = iter(specs)
        records: list[RolloutRecord] = []

        async def worker() -> None:
            for spec in waiting:
                if self._draining.is_set():
                    return
                record = await self._rollout(spec)
                if record is not None:
                    records.append(record)

        async with task_group() as group:
            for index in range(min(self._concurrency, len(specs))):
                group.create_task(worker(), name=f"rollout-worker-{index}")
        return records

    async def _rollout(self, spec: RolloutSpec) -> RolloutRecord | None:
        """Try until an attempt counts; None when a drain came between two attempts."""
        store = self._tools.store
        first = store.next_attempt(spec.rollout_id)
        for number in range(first, first + self._attempts):
            record = await Attempt(self._tools, spec, number).run()
            last = number == first + self._attempts - 1
            final = last or not record.outcome.meaning.retryable
            record = counted(record) if final else record
            store.put_rollout(record)
            self._breaker.note(record)
            if final:
                self._on_done(record)
                return record
            store.event(
                "retry",
                {
                    "rollout_id": spec.rollout_id,
                    "attempt": number,
                    "code": record.outcome.code.value,
                    "message": record.outcome.message,
                },
            )
            if self._draining.is_set():
                return None
        raise AssertionError("unreachable: the last attempt counts")


class Breaker:
    """Counts failures of one class in a row; any other ending closes the count."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kind: OutcomeClass | None = None
        self._row = 0

    def note(self, record: RolloutRecord) -> None:
        """Take note of an attempt; raises BreakerOpen at ``limit`` failures in a row."""
        if record.outcome.meaning.reward_counts:
            self._kind, self._row = None, 0
            return
        kind = record.outcome.code.outcome_class
        self._row = self._row + 1 if kind is self._kind else 1
        self._kind = kind
        if self._row >= self._limit:
            raise BreakerOpen(
                f"{self._row} rollouts in a row failed with {kind} failures, the last "
                f"({record.session_id}) with {record.outcome.code}: {record.outcome.message}; "
                "mend the cause and continue with --resume"
            )

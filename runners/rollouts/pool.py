"""Rollouts in flight: bounded concurrency, fresh attempts after failures, and a circuit breaker.

Exactly one attempt of a rollout counts. A drain lets what is in flight finish and starts nothing
new. A failed rollout is a record like any other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from conf.errors import AgentrlError, ExitCode, error_text
from runners.concurrency.limits import Admission
from runners.concurrency.task_group import task_group
from runners.rollouts.attempt_record import mark_final
from runners.rollouts.context import AttemptContext, AttemptResult, Execute
from runners.rollouts.spec import RolloutSpec
from runners.store.run_store import RunStore
from runners.store.store_error import StoreError
from runners.trajectory.outcome import OutcomeClass
from runners.trajectory.record import RolloutRecord


class BreakerOpen(AgentrlError):
    """Too many failures of one class in a row: going on would only waste rollouts."""

    def __init__(self, message: str, failing: OutcomeClass) -> None:
        self.exit_code = (
            ExitCode.SERVICE_GONE if failing is OutcomeClass.INFRA else ExitCode.FAILURE_BUDGET
        )
        super().__init__(message)


class Pool:
    """Runs batches of rollouts; used by one campaign on one event loop."""

    def __init__(
        self,
        context: AttemptContext,
        store: RunStore,
        execute: Execute,
        *,
        admission: Admission,
        attempts: int,
        breaker: int,
        draining: asyncio.Event,
        on_done: Callable[[RolloutRecord], None],
    ) -> None:
        self._context = context
        self._store = store
        self._execute = execute
        self._admission = admission
        self._attempts = attempts
        self._breaker = Breaker(breaker)
        self._draining = draining
        self._on_done = on_done

    async def run(self, specs: Sequence[RolloutSpec]) -> list[RolloutRecord]:
        """Run every rollout and return its counting record, in any order.

        When draining, rollouts that were not started yet are left out. Raises BreakerOpen and
        StoreError.
        """
        records: list[RolloutRecord] = []

        async def one(spec: RolloutSpec) -> None:
            asked = time.monotonic()
            async with self._admission.slot():
                record = await self._rollout(spec, time.monotonic() - asked)
            if record is not None:
                records.append(record)

        async with task_group() as group:
            for spec in specs:
                group.create_task(one(spec), name=f"rollout-{spec.rollout_id}")
        return records

    async def _rollout(self, spec: RolloutSpec, queued_s: float) -> RolloutRecord | None:
        """Try until an attempt counts; None when a drain came before that."""
        first = self._store.next_attempt(spec.rollout_id)
        for number in range(first, first + self._attempts):
            if self._draining.is_set():
                return None
            finished = await self._execute(self._context, spec, number, queued_s)
            record = finished.record
            last = number == first + self._attempts - 1
            final = last or not record.outcome.meaning.retryable
            record = mark_final(record) if final else record
            self._keep(record)
            self._note(finished)
            if final:
                self._on_done(record)
                return record
            self._store.event(
                "retry",
                {
                    "rollout_id": spec.rollout_id,
                    "attempt": number,
                    "code": record.outcome.code.value,
                    "message": record.outcome.message,
                },
            )
        raise AssertionError("unreachable: the last attempt counts")

    def _keep(self, record: RolloutRecord) -> None:
        """Write a record. What fails for no reason that the store knows is tried once more; its own
        errors end the run, since nothing could be kept.
        """
        try:
            self._store.put_rollout(record)
        except StoreError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            text = f"{type(error).__name__}: {error_text(error)}"
            self._store.event("write_failed", {"session_id": record.session_id, "error": text})
            self._store.put_rollout(record)

    def _note(self, finished: AttemptResult) -> None:
        """Learn from an attempt; raises BreakerOpen."""
        if not finished.shared:  # a node that ends takes many attempts with it: one failure
            self._breaker.note(finished.record)
        if finished.pushed_back:
            self._admission.record_pushback()
        elif finished.record.outcome.meaning.reward_counts:
            self._admission.record_success()


class Breaker:
    """Counts the failures of each class in a row; a rollout with a reward closes all counts."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: Counter[OutcomeClass] = Counter()

    def note(self, record: RolloutRecord) -> None:
        """Take note of an attempt; raises BreakerOpen at ``limit`` failures in a row."""
        outcome = record.outcome
        if outcome.meaning.reward_counts:
            self._rows.clear()
            return
        self._rows[outcome.outcome_class] += 1
        row = self._rows[outcome.outcome_class]
        if row >= self._limit:
            raise BreakerOpen(
                f"{row} rollouts in a row failed with {outcome.outcome_class} failures, the last "
                f"({record.session_id}) with {outcome.code}: {outcome.message}; "
                "mend the cause and continue with --resume",
                outcome.outcome_class,
            )

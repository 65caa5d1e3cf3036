"""Run batches of rollouts: bounded concurrency, retries after failures, a circuit breaker.

Invariant: exactly one attempt of a rollout is marked final. A drain starts nothing new and lets
attempts in flight finish. A failed rollout is a record like any other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from conf.errors import AgentrlError, ExitCode, error_text
from runners.records.outcome import OutcomeClass
from runners.records.record import RolloutRecord
from runners.records.store import RunStore, StoreError
from runners.rollouts.contract import (
    AttemptContext,
    AttemptResult,
    Execute,
    RolloutSpec,
    mark_final,
)
from runners.system.concurrency import Admission, task_group


class BreakerOpen(AgentrlError):
    """Too many failures of one class in a row: further rollouts would be wasted."""

    def __init__(self, message: str, failing: OutcomeClass) -> None:
        self.exit_code = (
            ExitCode.SERVICE_GONE if failing is OutcomeClass.INFRA else ExitCode.FAILURE_BUDGET
        )
        super().__init__(message)


class Pool:
    """Runs batches of rollouts; used on one event loop."""

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
        on_attempt: Callable[[RolloutRecord], None] = lambda record: None,
    ) -> None:
        """``on_done`` gets each final record, ``on_attempt`` that of every attempt; both when it is
        stored.
        """
        self._context = context
        self._store = store
        self._execute = execute
        self._admission = admission
        self._attempts = attempts
        self._breaker = Breaker(breaker)
        self._draining = draining
        self._on_done = on_done
        self._on_attempt = on_attempt

    async def run(
        self, specs: Sequence[RolloutSpec], on_start: Callable[[], None] = lambda: None
    ) -> list[RolloutRecord]:
        """Run every rollout and return its final record, in any order.

        ``on_start`` is called when one has its place, before its first attempt. While draining,
        rollouts that have not started are left out. Raises BreakerOpen and StoreError.
        """
        records: list[RolloutRecord] = []

        async def run_one(spec: RolloutSpec) -> None:
            queued_at = time.monotonic()
            async with self._admission.slot():
                if not self._draining.is_set():
                    on_start()
                record = await self._run_rollout(spec, time.monotonic() - queued_at)
            if record is not None:
                records.append(record)

        async with task_group() as group:
            for spec in specs:
                group.create_task(run_one(spec), name=f"rollout-{spec.rollout_id}")
        return records

    async def _run_rollout(self, spec: RolloutSpec, queued_s: float) -> RolloutRecord | None:
        """Run attempts until one is final and return its record; None if a drain came before."""
        first = self._store.next_attempt(spec.rollout_id)
        for number in range(first, first + self._attempts):
            if self._draining.is_set():
                return None
            result = await self._execute(self._context, spec, number, queued_s)
            record = result.record
            last = number == first + self._attempts - 1
            final = last or not record.outcome.meaning.retryable
            record = mark_final(record) if final else record
            self._store_record(record)
            self._on_attempt(record)
            self._learn(result)
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

    def _store_record(self, record: RolloutRecord) -> None:
        """Store a record; raises StoreError, which ends the run, since nothing can be stored.

        Any other failure (a cancellation inside the store's libraries, say) is retried once.
        """
        try:
            self._store.put_rollout(record)
        except StoreError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            text = f"{type(error).__name__}: {error_text(error)}"
            self._store.event("write_failed", {"session_id": record.session_id, "error": text})
            self._store.put_rollout(record)

    def _learn(self, result: AttemptResult) -> None:
        """Adapt breaker and admission to an attempt's result; raises BreakerOpen."""
        if not result.shared:  # a node that is lost takes many attempts with it: one failure
            self._breaker.count(result.record)
        if result.pushed_back:
            self._admission.record_pushback()
        elif result.record.outcome.meaning.reward_counts:
            self._admission.record_success()


class Breaker:
    """Counts consecutive failures of each class; a rollout with a reward resets all counts."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row: Counter[OutcomeClass] = Counter()

    def count(self, record: RolloutRecord) -> None:
        """Count an attempt; raises BreakerOpen at ``limit`` failures in a row."""
        outcome = record.outcome
        if outcome.meaning.reward_counts:
            self._in_a_row.clear()
            return
        self._in_a_row[outcome.outcome_class] += 1
        failures = self._in_a_row[outcome.outcome_class]
        if failures >= self._limit:
            raise BreakerOpen(
                f"{failures} attempts in a row failed with {outcome.outcome_class} failures, the "
                f"last ({record.session_id}) with {outcome.code}: {outcome.message}; "
                "fix the cause and continue with --resume",
                outcome.outcome_class,
            )

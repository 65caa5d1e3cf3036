"""One attempt of a rollout: session → sandbox → agent → patch → grade. It always ends in a record.

Nothing an attempt does can hurt another: every stage has its own deadline and the whole has a
guard, every exception becomes an `Outcome`, and teardown failures are events, never results. The
trajectory is durable before it is graded. Only a store that cannot keep the record ends more than
the attempt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from conf.errors import error_text
from runners.diagnostics.attempt_progress import Flight
from runners.gateway.client import GatewayError
from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.processes.recorder import RolloutRecorder
from runners.rollouts.context import AttemptContext, AttemptResult, Execute, RolloutSpec
from runners.rollouts.reward import reward_of
from runners.sandboxes.contract import Sandbox, SandboxError, SandboxSpec
from runners.store.store_error import StoreError
from runners.tasks.contract import Patch, Verdict, VerdictKind
from runners.tasks.patch import capture_patch
from runners.tasks.patch_record import encode_patch_extra, encode_patch_text
from runners.tasks.pytest_mounts import agent_environment, agent_mounts
from runners.trajectory.counters import STORED_COUNTERS
from runners.trajectory.outcome import Outcome, OutcomeClass, OutcomeCode, Stage, advance
from runners.trajectory.record import RolloutRecord, Turn


class _Ended(Exception):
    """Ends the attempt early with an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Attempt:
    """One attempt; used once."""

    def __init__(
        self,
        context: AttemptContext,
        keeper: RolloutRecorder,
        spec: RolloutSpec,
        number: int,
        *,
        queued_s: float = 0.0,
    ) -> None:
        self._pushed_back = False
        self._context = context
        self._keeper = keeper
        self._spec = spec
        self._number = number
        self._session_id = session_of(spec, number)
        self._task = spec.task
        self._stage = Stage.QUEUE
        self._timings: dict[str, float] = {Stage.QUEUE: queued_s}
        self._harness: HarnessResult | None = None
        self._patch: Patch | None = None
        self._verdict: Verdict | None = None
        self._turns: list[Turn] = []
        self._extra: dict[str, Any] = {}
        self._flight: Flight

    async def run(self) -> AttemptResult:
        """Run it to its end.

        Raises StoreError, after which nothing could be kept; and CancelledError if this task is
        cancelled, after the record is stored.
        """
        started = time.monotonic()
        with self._context.watch.attempt(self._session_id) as self._flight:
            try:
                outcome = await self._guarded()
            except asyncio.CancelledError:
                self._timings["total"] = time.monotonic() - started
                self._note_pending()
                cancelled = Outcome(OutcomeCode.CANCELLED_USER, self._stage, "cancelled")
                await self._keeper.put_rollout(self._record(cancelled))
                raise
        self._stage = advance(self._stage, Stage.END)
        self._timings["total"] = time.monotonic() - started
        return AttemptResult(self._record(outcome), self._pushed_back)

    async def _guarded(self) -> Outcome:
        """Wait for room, then go through the stages within the guard; raises StoreError and a real
        CancelledError.
        """
        guard_s, guard = self._context.deadlines.guard_s, None
        try:
            async with self._doing(Stage.QUEUE):
                await self._context.sandbox_starts.take()
                self._task = await self._context.ready(self._spec.task)
            async with self._flight.deadline(guard_s) as guard:
                return await self._stages()
        except _Ended as end:
            return end.outcome
        except StoreError:
            raise
        except TimeoutError as error:
            if guard is None or not guard.expired():
                return classify(error, self._stage)
            self._note_pending()
            code = _STUCK.get(self._stage, OutcomeCode.INTERNAL_GUARD)
            return Outcome(code, self._stage, f"the attempt was not over after {guard_s:g} s")
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            return classify(error, self._stage)
        except Exception as error:  # a failed rollout is data
            return classify(error, self._stage)

    async def _stages(self) -> Outcome:
        context, deadlines = self._context, self._context.deadlines
        async with self._session() as api_key:
            async with self._sandbox(api_key) as sandbox:
                # The harness kills at its own deadline; ours is for one that does not.
                late = deadlines.harness_s + deadlines.teardown_s
                async with self._doing(Stage.HARNESS, late, OutcomeCode.INFRA_HARNESS):
                    self._harness = await context.harness.run(
                        sandbox, self._harness_context(api_key)
                    )
                if self._harness.facts:
                    self._extra["harness"] = self._harness.facts
                if self._harness.code.outcome_class is not OutcomeClass.POLICY:
                    self._extra["output"] = self._harness.output
                async with self._doing(
                    Stage.PATCH, deadlines.patch_s, OutcomeCode.INFRA_SANDBOX_LOST
                ):
                    self._patch = await capture_patch(self._task, sandbox)
                    if self._patch.tampered:
                        self._extra["tampered"] = list(self._patch.tampered)
            async with self._doing(Stage.FINISH, deadlines.turn_s, OutcomeCode.INFRA_GATEWAY):
                await self._finish()
        outcome = self._agent_outcome(self._harness)
        if not outcome.meaning.reward_counts:
            return outcome
        self._extra["agent_code"] = outcome.code
        await self._keeper.put_rollout(self._record(outcome))
        # Twice: the same patch of another rollout may be graded first.
        late = 2 * (deadlines.boot_s + deadlines.grade_s + deadlines.teardown_s)
        async with self._doing(Stage.GRADE, late, OutcomeCode.GRADER_TIMEOUT):
            self._verdict = await context.grader.grade(
                self._task,
                self._patch,
                name=f"{self._session_id}-grade",
                deadline_s=deadlines.grade_s,
            )
        if self._verdict.kind is VerdictKind.INFRA:
            return Outcome(OutcomeCode.GRADER_ERROR, Stage.GRADE, self._verdict.reason)
        return outcome

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[str]:
        """Open the gateway session of this attempt; it is deleted however the attempt ends."""
        context, spec = self._context, self._spec
        await self._keeper.register("session", self._session_id)
        try:
            async with self._doing(
                Stage.SESSION, context.deadlines.boot_s, OutcomeCode.INFRA_GATEWAY
            ):
                _, api_key = await context.gateway.create_session(
                    self._session_id,
                    seed=spec.seed,
                    sampling={"temperature": spec.temperature},
                    scenario=context.scenario,
                    max_turns=context.max_turns,
                )
            yield api_key
        finally:  # also one whose creation was answered too late
            await self._quietly("delete session", self._forget_session())

    async def _forget_session(self) -> None:
        try:
            await self._context.gateway.delete(self._session_id)
        except GatewayError as error:
            if error.status != 404:  # otherwise it was never made
                raise
        await self._keeper.unregister("session", self._session_id)

    @asynccontextmanager
    async def _sandbox(self, api_key: str) -> AsyncIterator[Sandbox]:
        """Boot the sandbox of this attempt; it is closed however the attempt ends."""
        context = self._context
        spec = SandboxSpec(
            name=self._session_id,
            source=self._task.repo,
            network="gateway",
            gateway_control=context.gateway_control,
            gateway_url=context.gateway_url,
            session_key=api_key,
            mounts={**context.harness.mounts(), **agent_mounts(self._task)},
            env=agent_environment(self._task),
            image=self._task.image,
            workdir=self._task.workdir,
        )
        async with self._doing(
            Stage.BOOT, context.deadlines.boot_s, OutcomeCode.INFRA_SANDBOX_START
        ):
            sandbox = await context.backend.create(spec)
        try:
            yield sandbox
        finally:
            await self._quietly("close sandbox", sandbox.close())

    def _harness_context(self, api_key: str) -> HarnessContext:
        return HarnessContext(
            problem_statement=self._spec.task.problem_statement,
            api_key=api_key,
            model="policy",
            deadline_s=self._context.deadlines.harness_s,
        )

    async def _finish(self) -> None:
        """End the session's turns and read them back."""
        finished = await self._context.gateway.finish(self._session_id, segments=False)
        stats = finished["stats"]
        self._pushed_back = self._pushed_back or bool(stats.get("pushed_back"))
        self._extra["session"] = {name: stats[name] for name in STORED_COUNTERS}
        self._turns = await self._keeper.turns(self._session_id)

    def _agent_outcome(self, result: HarnessResult) -> Outcome:
        """Combine what the agent program says of itself with what the gateway saw."""
        code = result.code
        message = (
            result.final_message
            if code.outcome_class is OutcomeClass.POLICY
            else result.output[-512:]
        )
        if not self._turns and code.outcome_class in (OutcomeClass.POLICY, OutcomeClass.BUDGET):
            code, message = (
                OutcomeCode.INFRA_HARNESS,
                f"the agent ended without a model call: {result.output[-300:]}",
            )
        elif code is OutcomeCode.POLICY_GAVE_UP and self._turns[-1].malformed_calls:
            code = OutcomeCode.POLICY_FORMAT_ERROR
        return Outcome(code, Stage.HARNESS, message, result.raw_finish_reason)

    @asynccontextmanager
    async def _doing(
        self,
        stage: Stage,
        deadline_s: float | None = None,
        late: OutcomeCode = OutcomeCode.INTERNAL_ERROR,
    ) -> AsyncIterator[None]:
        """Be in a stage: timed, in sight, within its deadline; its failure ends the attempt."""
        if stage is not Stage.QUEUE:
            self._stage = advance(self._stage, stage)
        started = time.monotonic()
        self._flight(stage)
        limit = self._flight.deadline(deadline_s) if deadline_s else asyncio.timeout(None)
        try:
            async with limit as scope:
                yield
        except StoreError:
            raise
        except TimeoutError as error:
            if not scope.expired():
                raise _Ended(classify(error, stage)) from error
            self._note_pending()
            text = f"{stage} took longer than {deadline_s:g} s"
            raise _Ended(Outcome(late, stage, text)) from error
        except Exception as error:
            self._pushed_back = getattr(error, "pushed_back", False)
            raise _Ended(classify(error, stage)) from error
        finally:
            spent = time.monotonic() - started
            self._timings[stage] = self._timings.get(stage, 0.0) + spent

    async def _quietly(self, what: str, action: Awaitable[object]) -> None:
        """Await a teardown step; its failure is an event, never a result."""
        try:
            async with asyncio.timeout(self._context.deadlines.teardown_s):
                await action
        except (asyncio.CancelledError, Exception) as error:
            if isinstance(error, asyncio.CancelledError) and being_cancelled():
                raise
            text = f"{type(error).__name__}: {error_text(error)}"
            await self._keeper.event(
                "teardown_failed", {"session_id": self._session_id, "what": what, "error": text}
            )

    def _note_pending(self) -> None:
        if self._flight.pending:
            self._extra["pending"] = self._flight.pending

    def _record(self, outcome: Outcome) -> RolloutRecord:
        graded = self._verdict is not None and outcome.meaning.reward_counts
        solved = self._verdict.kind is VerdictKind.SOLVED if graded and self._verdict else None
        return replace(
            bare_record(self._spec, self._number, outcome, self._turns),
            reward=reward_of(self._context.reward, self._verdict, self._turns)
            if graded and self._verdict
            else None,
            solved=solved,
            final_message=self._harness.final_message if self._harness else "",
            patch=encode_patch_text(self._patch) if self._patch else "",
            verdict=verdict_dict(self._verdict),
            timings=dict(self._timings),
            extra=self._extra | (encode_patch_extra(self._patch) if self._patch else {}),
        )


def execute_here(recorder: RolloutRecorder) -> Execute:
    """Return a function that runs attempts in this process and writes them with ``recorder``."""

    async def execute(
        context: AttemptContext, spec: RolloutSpec, number: int, queued_s: float
    ) -> AttemptResult:
        return await Attempt(context, recorder, spec, number, queued_s=queued_s).run()

    return execute


def session_of(spec: RolloutSpec, number: int) -> str:
    """Return the name of an attempt: of its gateway session and of its sandbox."""
    return f"{spec.rollout_id}-a{number}"


def bare_record(
    spec: RolloutSpec, number: int, outcome: Outcome, turns: Sequence[Turn]
) -> RolloutRecord:
    """Return the record of an attempt of which no more is known than its turns."""
    return RolloutRecord(
        rollout_id=spec.rollout_id,
        attempt=number,
        step=spec.step,
        split=spec.split,
        group=spec.group,
        member=spec.member,
        task_id=spec.task.id,
        session_id=session_of(spec, number),
        counts=False,
        outcome=outcome,
        reward=None,
        solved=None,
        advantage=None,
        turns=len(turns),
        sampled_tokens=sum(len(turn.output_ids) for turn in turns),
        trained_tokens=0,
        final_message="",
        patch="",
        verdict=None,
        timings={},
    )


_STUCK = {Stage.GRADE: OutcomeCode.GRADER_TIMEOUT}
"""What the guard's end means, where it does not mean that we are at fault."""


def classify(error: BaseException, stage: Stage) -> Outcome:
    """Turn what was raised in a stage into an outcome."""
    if stage is Stage.GRADE:
        code = OutcomeCode.GRADER_ERROR
    elif isinstance(error, GatewayError):
        code = OutcomeCode.INFRA_GATEWAY
    elif isinstance(error, SandboxError):
        booting = stage is Stage.BOOT
        code = OutcomeCode.INFRA_SANDBOX_START if booting else OutcomeCode.INFRA_SANDBOX_LOST
    else:
        code = OutcomeCode.INTERNAL_ERROR
    return Outcome(code, stage, f"{type(error).__name__}: {error_text(error)}")


def being_cancelled() -> bool:
    """Whether the current task is asked to end; a CancelledError can also come from a library."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def mark_final(
    record: RolloutRecord, *, advantage: float | None = None, trained_tokens: int = 0
) -> RolloutRecord:
    """Return the record marked as the one attempt of its rollout that counts."""
    return replace(record, counts=True, advantage=advantage, trained_tokens=trained_tokens)


def verdict_dict(verdict: Verdict | None) -> dict[str, object] | None:
    """Return a verdict as a record keeps it."""
    if verdict is None:
        return None
    return {
        "kind": verdict.kind.value,
        "reason": verdict.reason,
        "fail_to_pass": [verdict.fail_to_pass_passed, verdict.fail_to_pass_total],
        "pass_to_pass": [verdict.pass_to_pass_passed, verdict.pass_to_pass_total],
        "timed_out": verdict.timed_out,
        "duration_s": verdict.duration_s,
        "log": verdict.log,
    }

"""Run one attempt of a rollout: session → sandbox → agent → patch → grade.

An attempt always ends in a record, and nothing it does can hurt another: every stage has its own
deadline and the whole has one (the guard), every exception becomes an `Outcome`, and failures of
the teardown are events, never results. The trajectory is durable before it is graded. Only a store
that cannot keep the record ends more than the attempt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

from conf.errors import error_text
from runners.gateway.refusal import GatewayError
from runners.records import ids
from runners.records.outcome import (
    TEARDOWN,
    Outcome,
    OutcomeClass,
    OutcomeCode,
    Stage,
    advance,
)
from runners.records.record import RolloutRecord
from runners.records.session_summary import STORED_COUNTERS, SessionSummary
from runners.records.store import StoreError
from runners.records.text import shorten
from runners.rollouts.contract import (
    AGENT_CODE,
    AttemptContext,
    AttemptResult,
    Execute,
    HarnessContext,
    HarnessResult,
    RolloutSpec,
    classify_error,
    conclude,
    make_record,
    verdict_to_dict,
    with_reward,
)
from runners.rollouts.reward import RolloutReward
from runners.sandboxes.contract import EGRESS, KilledError, OversizedError, Sandbox
from runners.system.diagnostics import AttemptProgress
from runners.system.processes import CPU_S, CpuMeter, measure_cpu_time
from runners.system.processes.ledger import RolloutRecorder
from runners.tasks.contract import HarborVerifier, Patch, Verdict, VerdictKind, make_refused_patch
from runners.tasks.grading import RolloutResult, agent_limit_s, make_verdict, wait_healthy
from runners.tasks.patches.patch import (
    TOUCHED,
    capture_patch,
    decode_patch,
    encode_patch_extra,
    encode_patch_text,
)
from runners.tasks.repositories.task_repositories import denied_hosts, describe_workspace

_GUARD_CODES = {Stage.GRADE: OutcomeCode.GRADER_TIMEOUT}
"""Outcome of an attempt that the guard ends in a stage; in any other it is our own fault."""


_AGENTS_OWN = (OutcomeClass.POLICY, OutcomeClass.BUDGET)
"""Classes of the codes that an agent program is believed."""

TASK_NAME = 200
"""Characters of a task's id that its gateway takes; the record has the whole id."""

_FAILED_SERVICE = {"engine": OutcomeCode.INFRA_MODEL, "gateway": OutcomeCode.INFRA_GATEWAY}
"""Outcome of a program that ended without an answer, by the service that owed it one."""


class _AttemptEnded(Exception):
    """Ends the attempt early with an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Attempt:
    """One attempt; used once."""

    def __init__(
        self,
        context: AttemptContext,
        recorder: RolloutRecorder,
        spec: RolloutSpec,
        number: int,
        *,
        queued_s: float = 0.0,
    ) -> None:
        """Prepare attempt ``number`` (from 0) of a rollout that has waited ``queued_s`` seconds."""
        self._pushed_back = False
        self._context = context
        self._recorder = recorder
        self._spec = spec
        self._number = number
        self._session_id = ids.session_id(spec.rollout_id, number)
        self._task = spec.task
        self._stage = Stage.QUEUE
        self._timings: dict[str, float] = {Stage.QUEUE: queued_s}
        self._harness: HarnessResult | None = None
        self._patch: Patch | None = None
        self._verdict: Verdict | None = None
        self._reward: RolloutReward | None = None
        self._summary = SessionSummary()
        self._extra: dict[str, Any] = {}
        self._progress: AttemptProgress
        self._cpu = CpuMeter()

    async def run(self) -> AttemptResult:
        """Run it to its end and return its record.

        Raises StoreError if nothing can be stored any more, and CancelledError if this task is
        cancelled, after the record is stored.
        """
        started = time.monotonic()
        with (
            self._context.watch.attempt(self._session_id) as self._progress,
            measure_cpu_time() as self._cpu,
        ):
            try:
                outcome = await self._run_guarded()
            except asyncio.CancelledError:
                self._timings["total"] = time.monotonic() - started
                self._note_pending()
                cancelled = Outcome(OutcomeCode.CANCELLED_USER, self._stage, "cancelled")
                await self._recorder.put_rollout(self._make_record(cancelled))
                raise
        self._stage = advance(self._stage, Stage.END)
        self._timings["total"] = time.monotonic() - started
        return AttemptResult(self._make_record(outcome), self._pushed_back)

    async def _run_guarded(self) -> Outcome:
        """Wait for a sandbox start, then go through the stages within the guard.

        Raises StoreError, and CancelledError only if this task itself is cancelled.
        """
        guard_s, guard = self._context.deadlines.guard_s, None
        try:
            async with self._in_stage(Stage.QUEUE):
                await self._context.sandbox_starts.take()
                self._task = await self._context.ready(self._spec.task)
            async with self._progress.deadline(guard_s) as guard:
                return await self._run_stages()
        except _AttemptEnded as end:
            return end.outcome
        except StoreError:
            raise
        except TimeoutError as error:
            # A library may raise TimeoutError too: only the guard's own expiry is the guard's.
            if guard is None or not guard.expired():
                return classify_error(error, self._stage)
            self._note_pending()
            code = _GUARD_CODES.get(self._stage, OutcomeCode.INTERNAL_GUARD)
            return Outcome(code, self._stage, f"the attempt was not over after {guard_s:g} s")
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            return classify_error(error, self._stage)
        except Exception as error:  # a failed rollout is data
            return classify_error(error, self._stage)

    async def _run_stages(self) -> Outcome:
        context, deadlines = self._context, self._context.deadlines
        async with self._open_session() as api_key:
            async with self._open_sandbox(api_key) as sandbox:
                # The harness kills the agent at its own deadline; this one is for a harness that
                # does not.
                late_s = deadlines.harness_s + deadlines.teardown_s
                async with self._in_stage(Stage.HARNESS, late_s, OutcomeCode.INFRA_HARNESS):
                    self._harness = await self._run_agent(sandbox, api_key)
                if attempts := sandbox.egress_attempts():
                    self._extra[EGRESS] = [asdict(each) for each in attempts]
                if self._harness.facts:
                    self._extra["harness"] = self._harness.facts
                if self._harness.code.outcome_class is not OutcomeClass.POLICY:
                    self._extra["output"] = self._harness.output
                if isinstance(self._task.grading, HarborVerifier):
                    return await self._finish_in_place(sandbox, self._harness)
                # The capture's own deadline begins when it need not wait for those of others.
                late_s = 4 * deadlines.patch_s
                async with self._in_stage(Stage.PATCH, late_s, OutcomeCode.INFRA_SANDBOX_LOST):
                    self._patch = patch = await self._capture(sandbox, self._harness)
                    if patch.protected_touched:
                        self._extra[TOUCHED] = list(patch.protected_touched)
            async with self._in_stage(Stage.FINISH, deadlines.turn_s, OutcomeCode.INFRA_GATEWAY):
                await self._finish_session()
        outcome = self._agent_outcome(self._harness)
        result = RolloutResult(outcome, self._summary, patch)
        return await self._grade(
            outcome,
            lambda name, deadline_s: context.grader.grade(
                self._task, result, name=name, deadline_s=deadline_s
            ),
        )

    async def _finish_in_place(self, sandbox: Sandbox, agent: HarnessResult) -> Outcome:
        """End the session, then grade the sandbox itself; its patch is empty."""
        self._patch = decode_patch("", {})
        async with self._in_stage(
            Stage.FINISH, self._context.deadlines.turn_s, OutcomeCode.INFRA_GATEWAY
        ):
            await self._finish_session()

        async def grade(name: str, deadline_s: float) -> Verdict:
            if agent.code is OutcomeCode.POLICY_FILLED_DISK:  # nothing more can be run in it
                return make_verdict(self._task, VerdictKind.UNSOLVED, agent.output)
            return await self._context.grader.grade_end_state(
                self._task, sandbox, name=name, deadline_s=deadline_s
            )

        return await self._grade(self._agent_outcome(agent), grade)

    async def _grade(
        self, outcome: Outcome, grade: Callable[[str, float], Awaitable[Verdict]]
    ) -> Outcome:
        """Grade an attempt whose outcome has a reward; return the outcome after it.

        ``grade`` gets the name of the grading and its deadline in seconds.
        """
        if not outcome.meaning.reward_counts:
            return outcome
        deadlines = self._context.deadlines
        self._extra[AGENT_CODE] = outcome.code
        await self._recorder.put_rollout(self._make_record(outcome))
        # Twice the time of one grading: the same patch of another rollout may be graded first, and
        # this attempt then waits for that verdict.
        late_s = 2 * (deadlines.boot_s + deadlines.grade_s + deadlines.teardown_s)
        late_s += deadlines.grade_s  # of the reward
        async with self._in_stage(Stage.GRADE, late_s, OutcomeCode.GRADER_TIMEOUT):
            self._verdict = await grade(f"{self._session_id}-grade", deadlines.grade_s)
            outcome = conclude(outcome, self._verdict)
            if outcome.meaning.reward_counts and self._patch is not None:
                result = RolloutResult(outcome, self._summary, self._patch, self._verdict)
                self._reward = await self._context.reward(result, deadlines.grade_s)
        return outcome

    async def _run_agent(self, sandbox: Sandbox, api_key: str) -> HarnessResult:
        """Run the agent to its end; what it does to the sandbox is its own doing.

        No text of the result holds the session's key.
        """
        context = self._harness_context(api_key)
        try:
            result = await self._context.harness.run(sandbox, context)
        except (OversizedError, KilledError) as error:
            # Killed before its first turn, it is the machine's doing (``_agent_outcome``).
            lost, full = OutcomeCode.INFRA_SANDBOX_LOST, OutcomeCode.POLICY_FILLED_DISK
            return HarnessResult(
                code=full if isinstance(error, OversizedError) else lost,
                final_message=str(error),
                raw_finish_reason=None,
                exit_code=-9,
                duration_s=0.0,
                output=str(error),
            )
        # A program may print its settings, or the headers of a request that failed.
        return replace(
            result,
            output=result.output.replace(api_key, "***"),
            final_message=result.final_message.replace(api_key, "***"),
        )

    async def _capture(self, sandbox: Sandbox, agent: HarnessResult) -> Patch:
        if agent.code is OutcomeCode.POLICY_FILLED_DISK:
            return make_refused_patch(agent.output, code=agent.code)
        context = self._context
        deadline_s = context.deadlines.patch_s
        return await capture_patch(self._task, sandbox, context.capture, deadline_s=deadline_s)

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[str]:
        """Open the gateway session of this attempt and yield its key; delete it at the end."""
        context, spec = self._context, self._spec
        await self._recorder.register("session", self._session_id)
        try:
            async with self._in_stage(
                Stage.SESSION, context.deadlines.boot_s, OutcomeCode.INFRA_GATEWAY
            ):
                _, api_key = await context.gateway.create_session(
                    self._session_id,
                    task=shorten(spec.task.id, TASK_NAME),
                    seed=spec.seed,
                    sampling={"temperature": spec.temperature},
                    scenario=context.scenario,
                    max_turns=context.max_turns,
                )
            yield api_key
        finally:
            # Also after a creation that timed out: the gateway may have made it all the same.
            await self._tear_down("delete session", self._delete_session())

    async def _delete_session(self) -> None:
        try:
            await self._context.gateway.delete(self._session_id)
        except GatewayError as error:
            if error.status != 404:  # 404: it was never made
                raise
        await self._recorder.unregister("session", self._session_id)

    @asynccontextmanager
    async def _open_sandbox(self, api_key: str) -> AsyncIterator[Sandbox]:
        """Boot the sandbox of this attempt and yield it; close it at the end."""
        context = self._context
        home = context.gateway.home(self._session_id)
        spec = describe_workspace(self._task)
        spec = replace(
            spec,
            name=self._session_id,
            network="gateway",
            gateway_control=context.gateway_control or home.control,
            gateway_url=context.gateway_url or home.url,
            session_key=api_key,
            mounts={**context.harness.mounts(), **spec.mounts},
            denied_hosts=denied_hosts(self._spec.task),
            workspace_bytes=context.capture.workspace_bytes,
        )
        sandbox: Sandbox | None = None
        try:
            async with self._in_stage(
                Stage.BOOT, context.deadlines.boot_s, OutcomeCode.INFRA_SANDBOX_START
            ):
                sandbox = await context.backend.create(spec)
                if isinstance(self._task.grading, HarborVerifier):
                    await wait_healthy(self._task, sandbox)
            yield sandbox
        finally:
            if sandbox is not None:
                started = time.monotonic()
                await self._tear_down("close sandbox", sandbox.close())
                self._timings[TEARDOWN] = time.monotonic() - started

    def _harness_context(self, api_key: str) -> HarnessContext:
        deadline_s = self._context.deadlines.harness_s
        if isinstance(self._task.grading, HarborVerifier):
            deadline_s = agent_limit_s(self._task, deadline_s)
        return HarnessContext(
            prompt=self._spec.task.problem_statement,
            api_key=api_key,
            model="policy",
            deadline_s=deadline_s,
        )

    async def _finish_session(self) -> None:
        """End the session's turns; keep its counters and the summary of its turns."""
        finished = await self._context.gateway.finish(self._session_id, segments=False)
        stats = finished["stats"]
        self._pushed_back = self._pushed_back or bool(stats.get("pushed_back"))
        self._extra["session"] = {name: stats[name] for name in STORED_COUNTERS}
        self._summary = await self._recorder.session_summary(self._session_id)

    def _agent_outcome(self, result: HarnessResult) -> Outcome:
        """Combine the agent program's own result with the turns that the gateway recorded."""
        code, session = result.code, self._extra["session"]
        message = (
            result.final_message
            if code.outcome_class is OutcomeClass.POLICY
            else result.output[-512:]
        )
        ended_by_policy = code.outcome_class in _AGENTS_OWN
        unanswered = not ended_by_policy or code is OutcomeCode.BUDGET_WALL
        if code.outcome_class is OutcomeClass.INFRA and session["over_limit"]:
            # The agent program fails on refusals that its own sandbox's other requests have caused.
            code = OutcomeCode.POLICY_REQUEST_LIMITS
        elif unanswered and session["failed_service"] is not None:
            code = _FAILED_SERVICE[session["failed_service"]]
            if not message.strip():  # A program that is ended at its deadline prints nothing.
                message = f"the {session['failed_service']} failed on the agent's last request"
        elif not self._summary.turns and ended_by_policy:
            code, message = (
                OutcomeCode.INFRA_HARNESS,
                f"the agent ended without a model call: {result.output[-300:]}",
            )
        elif code is OutcomeCode.POLICY_GAVE_UP and self._summary.ends_malformed:
            code = OutcomeCode.POLICY_FORMAT_ERROR
        elif self._summary.turns and not ended_by_policy:
            # Its commands share the agent's sandbox: they can kill it, or print in its name. Were
            # that a failure of the infrastructure, a policy could choose it instead of reward 0.
            code = OutcomeCode.POLICY_AGENT_ENDED
            message = f"it ended as {result.code}, but no service failed: {result.output[-300:]}"
        if self._patch is not None and self._patch.refused and code.outcome_class in _AGENTS_OWN:
            code = OutcomeCode(self._patch.refused_as or OutcomeCode.POLICY_OVERSIZED_PATCH)
            message = self._patch.refused
        return Outcome(code, Stage.HARNESS, message, result.raw_finish_reason)

    @asynccontextmanager
    async def _in_stage(
        self,
        stage: Stage,
        deadline_s: float | None = None,
        late: OutcomeCode = OutcomeCode.INTERNAL_ERROR,
    ) -> AsyncIterator[None]:
        """Time a stage and hold it to its deadline; ``late``: the outcome if it is missed.

        Raises StoreError; any other failure in the block ends the attempt with its outcome.
        """
        if stage is not Stage.QUEUE:
            self._stage = advance(self._stage, stage)
        started = time.monotonic()
        self._progress.enter(stage)
        limit = self._progress.deadline(deadline_s) if deadline_s else asyncio.timeout(None)
        try:
            async with limit as scope:
                yield
        except StoreError:
            raise
        except TimeoutError as error:
            if not scope.expired():
                raise _AttemptEnded(classify_error(error, stage)) from error
            self._note_pending()
            text = f"{stage} took longer than {deadline_s:g} s"
            raise _AttemptEnded(Outcome(late, stage, text)) from error
        except Exception as error:
            self._pushed_back = getattr(error, "pushed_back", False)
            raise _AttemptEnded(classify_error(error, stage)) from error
        finally:
            spent = time.monotonic() - started
            self._timings[stage] = self._timings.get(stage, 0.0) + spent

    async def _tear_down(self, what: str, action: Awaitable[object]) -> None:
        """Await a teardown step within its deadline; its failure is an event, never a result."""
        deadline_s = self._context.deadlines.teardown_s
        step = asyncio.ensure_future(action)
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(step)
        except (asyncio.CancelledError, Exception) as error:
            # A CancelledError is this task's own only if somebody asked for it; a library that
            # cancels its internals raises one as well, and that is a failure like any other.
            if isinstance(error, asyncio.CancelledError) and being_cancelled():
                # Cut off between the removal and its entry in the ledger, a step would leave
                # an entry of something that is gone.
                await asyncio.wait([step], timeout=deadline_s)
                raise
            text = f"{type(error).__name__}: {error_text(error)}"
            await self._recorder.event(
                "teardown_failed", {"session_id": self._session_id, "what": what, "error": text}
            )
        finally:
            step.cancel()  # does nothing to a step that is done

    def _note_pending(self) -> None:
        if self._progress.pending:
            self._extra["pending"] = self._progress.pending

    def _make_record(self, outcome: Outcome) -> RolloutRecord:
        verdict = self._verdict if outcome.meaning.reward_counts else None
        solved = None if verdict is None else verdict.kind is VerdictKind.SOLVED
        record = make_record(self._spec, self._number, outcome, self._summary)
        if verdict is not None:
            record = with_reward(record, self._reward)
        patch = encode_patch_extra(self._patch) if self._patch else {}
        cpu = {} if self._cpu.seconds is None else {CPU_S: round(self._cpu.seconds, 2)}
        return replace(
            record,
            solved=solved,
            final_message=self._harness.final_message if self._harness else "",
            patch=encode_patch_text(self._patch) if self._patch else "",
            verdict=verdict_to_dict(self._verdict),
            timings=dict(self._timings),
            extra=record.extra | self._extra | patch | cpu,
        )


def execute_here(recorder: RolloutRecorder) -> Execute:
    """Return a function that runs attempts in this process and writes them with ``recorder``."""

    async def execute(
        context: AttemptContext, spec: RolloutSpec, number: int, queued_s: float
    ) -> AttemptResult:
        return await Attempt(context, recorder, spec, number, queued_s=queued_s).run()

    return execute


def being_cancelled() -> bool:
    """Return whether the current task itself is being cancelled.

    CancelledError alone does not show it: a library may raise it for its own tasks.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

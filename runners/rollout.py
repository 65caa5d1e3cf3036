"""One attempt of a rollout: sandbox → agent → patch → grade → outcome. It always ends in a record.

Nothing an attempt does can hurt another: every phase has its own deadline, every exception becomes
an `Outcome`, and teardown failures are events, never results. The trajectory is durable before it
is graded.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf import schema
from conf.errors import AgentrlError, error_text
from runners.gateway.client import GatewayAdmin, GatewayError
from runners.harnesses.contract import Harness, HarnessContext, HarnessResult
from runners.outcome import Outcome, OutcomeClass, OutcomeCode, Stage
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxError, SandboxSpec
from runners.tasks.contract import Grader, Patch, Task, Verdict, VerdictKind
from runners.tasks.patch import capture
from runners.trajectory.record import RolloutRecord, Turn
from runners.trajectory.store import RunStore


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Which rollout it is: a place in the run, a task, a seed."""

    rollout_id: str
    """Unique in the run, e.g. ``train-000012-03-05`` (split, step, group, member)."""
    split: str
    step: int
    group: int
    member: int
    task: Task
    seed: int
    temperature: float


@dataclass(frozen=True, slots=True)
class RolloutTools:
    """What every attempt of a run works with."""

    backend: SandboxBackend
    harness: Harness
    grader: Grader
    gateway: GatewayAdmin
    gateway_url: str
    gateway_control: Path
    store: RunStore
    deadlines: schema.Deadlines
    reward: schema.TestsReward
    scenario: str
    """Kind of it, kept with each session."""
    in_flight: Counter[str]
    """Attempts by phase, for the eyes; mutated by attempts on the event loop."""


class _Ended(Exception):
    """Ends the attempt early with an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


_KEPT = (
    *("branches", "breaks", "forks", "ambiguous", "retries"),
    *("tito_mismatches", "tools_changed", "ignored"),
)
"""Of a session's figures: what its stored turns do not say, or not at once."""


class Attempt:
    """One attempt; used once."""

    def __init__(self, tools: RolloutTools, spec: RolloutSpec, number: int) -> None:
        self._tools = tools
        self._spec = spec
        self._number = number
        self._session_id = f"{spec.rollout_id}-a{number}"
        self._stage = Stage.BOOT
        self._timings: dict[str, float] = {}
        self._harness: HarnessResult | None = None
        self._patch: Patch | None = None
        self._verdict: Verdict | None = None
        self._turns: list[Turn] = []
        self._extra: dict[str, Any] = {}

    async def run(self) -> RolloutRecord:
        """Run it to its end and return the record (not yet marked as counting); raises only
        CancelledError.
        """
        started = time.monotonic()
        try:
            outcome = await self._phases()
        except _Ended as end:
            outcome = end.outcome
        except Exception as error:  # a failed rollout is data
            code = OutcomeCode.INTERNAL_ERROR
            outcome = Outcome(code, self._stage, f"{type(error).__name__}: {error_text(error)}")
        self._timings["total"] = time.monotonic() - started
        return self._record(outcome)

    async def _phases(self) -> Outcome:
        tools, deadlines = self._tools, self._tools.deadlines
        async with self._session() as api_key:
            sandbox = await self._boot(api_key)
            try:
                async with self._phase(Stage.HARNESS):
                    self._harness = await self._work(sandbox, api_key)
                async with (
                    self._phase(Stage.PATCH),
                    _deadline(deadlines.teardown_s, OutcomeCode.INFRA_SANDBOX_LOST, self._stage),
                ):
                    self._patch = await capture(self._spec.task, sandbox.workspace)
                    if self._patch.tampered:
                        self._extra["tampered"] = list(self._patch.tampered)
            finally:
                await self._quietly("close sandbox", sandbox.close())
            async with _deadline(deadlines.turn_s, OutcomeCode.INFRA_GATEWAY, self._stage):
                finished = await tools.gateway.finish(self._session_id)
                self._extra["session"] = {name: finished["stats"][name] for name in _KEPT}
        self._turns = tools.store.turns(self._session_id)
        outcome = self._agent_outcome(self._harness)
        if not outcome.meaning.reward_counts:
            return outcome
        tools.store.put_rollout(self._record(outcome))
        async with self._phase(Stage.GRADE):
            self._verdict = await tools.grader.grade(
                self._spec.task,
                self._patch,
                name=f"{self._session_id}-grade",
                deadline_s=deadlines.grade_s,
            )
        if self._verdict.kind is VerdictKind.INFRA:
            return Outcome(OutcomeCode.GRADER_ERROR, Stage.GRADE, self._verdict.reason)
        return outcome

    async def _boot(self, api_key: str) -> Sandbox:
        tools = self._tools
        spec = SandboxSpec(
            name=self._session_id,
            source=self._spec.task.repo,
            network="gateway",
            gateway_control=tools.gateway_control,
            gateway_url=tools.gateway_url,
            session_key=api_key,
            mounts=tools.harness.mounts(),
        )
        async with (
            self._phase(Stage.BOOT),
            _deadline(tools.deadlines.boot_s, OutcomeCode.INFRA_SANDBOX_START, Stage.BOOT),
        ):
            try:
                return await tools.backend.create(spec)
            except SandboxError as error:
                raise _Ended(
                    Outcome(OutcomeCode.INFRA_SANDBOX_START, Stage.BOOT, str(error))
                ) from error

    async def _work(self, sandbox: Sandbox, api_key: str) -> HarnessResult:
        context = HarnessContext(
            problem_statement=self._spec.task.problem_statement,
            api_key=api_key,
            model="policy",
            deadline_s=self._tools.deadlines.harness_s,
        )
        try:
            return await self._tools.harness.run(sandbox, context)
        except SandboxError as error:
            raise _Ended(
                Outcome(OutcomeCode.INFRA_SANDBOX_LOST, Stage.HARNESS, str(error))
            ) from error

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
    async def _session(self) -> AsyncIterator[str]:
        """Open the gateway session of this attempt; it is deleted however the attempt ends."""
        tools, spec = self._tools, self._spec
        try:
            async with _deadline(tools.deadlines.boot_s, OutcomeCode.INFRA_GATEWAY, Stage.BOOT):
                _, api_key = await tools.gateway.create_session(
                    self._session_id,
                    seed=spec.seed,
                    sampling={"temperature": spec.temperature},
                    scenario=tools.scenario,
                )
            try:
                yield api_key
            finally:
                await self._quietly("delete session", tools.gateway.delete(self._session_id))
        except GatewayError as error:
            raise _Ended(Outcome(OutcomeCode.INFRA_GATEWAY, self._stage, str(error))) from error

    @asynccontextmanager
    async def _phase(self, stage: Stage) -> AsyncIterator[None]:
        """Time a phase and show it as in flight."""
        self._stage = stage
        started = time.monotonic()
        self._tools.in_flight[stage] += 1
        try:
            yield
        finally:
            self._tools.in_flight[stage] -= 1
            self._timings[stage] = time.monotonic() - started

    async def _quietly(self, what: str, action: object) -> None:
        """Await a teardown step; its failure is an event, never a result."""
        try:
            async with asyncio.timeout(self._tools.deadlines.teardown_s):
                await action  # type: ignore[misc]
        except (AgentrlError, OSError, TimeoutError) as error:
            self._tools.store.event(
                "teardown_failed",
                {"session_id": self._session_id, "what": what, "error": error_text(error)},
            )

    def _record(self, outcome: Outcome) -> RolloutRecord:
        spec = self._spec
        graded = self._verdict is not None and outcome.meaning.reward_counts
        solved = self._verdict.kind is VerdictKind.SOLVED if graded and self._verdict else None
        return RolloutRecord(
            rollout_id=spec.rollout_id,
            attempt=self._number,
            step=spec.step,
            split=spec.split,
            group=spec.group,
            member=spec.member,
            task_id=spec.task.id,
            session_id=self._session_id,
            counts=False,
            outcome=outcome,
            reward=None
            if solved is None
            else reward_of(self._tools.reward, solved=solved, turns=self._turns),
            solved=solved,
            advantage=None,
            turns=len(self._turns),
            sampled_tokens=sum(len(turn.output_ids) for turn in self._turns),
            trained_tokens=0,
            final_message=self._harness.final_message if self._harness else "",
            patch=self._patch.diff.decode("utf-8", "replace") if self._patch else "",
            verdict=_verdict_dict(self._verdict),
            timings=dict(self._timings),
            extra=dict(self._extra),
        )


def reward_of(reward: schema.TestsReward, *, solved: bool, turns: list[Turn]) -> float:
    """Return the reward of a graded rollout: the tests decide, turns and malformed calls cost a
    little.
    """
    value = reward.solved if solved else reward.unsolved
    value -= reward.turn_penalty * len(turns)
    if any(turn.malformed_calls for turn in turns):
        value -= reward.malformed_penalty
    return value


def counted(
    record: RolloutRecord, *, advantage: float | None = None, trained_tokens: int = 0
) -> RolloutRecord:
    """Return the record marked as the one attempt of its rollout that counts."""
    return replace(record, counts=True, advantage=advantage, trained_tokens=trained_tokens)


@asynccontextmanager
async def _deadline(seconds: float, code: OutcomeCode, stage: Stage) -> AsyncIterator[None]:
    """End the attempt with ``code`` when the body takes longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise _Ended(Outcome(code, stage, f"{stage} took longer than {seconds:.0f} s")) from error


def _verdict_dict(verdict: Verdict | None) -> dict[str, object] | None:
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

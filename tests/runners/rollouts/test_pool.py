"""Attempts and the pool: each failure is a record, harms no other, and one attempt is final."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from conf.compose import compose
from conf.errors import ExitCode
from runners.records.graph import build_segments
from runners.records.outcome import TEARDOWN, TRANSITIONS, OutcomeClass, OutcomeCode, Stage
from runners.records.store.store_error import StoreError
from runners.rollouts.contract import HarnessContext, HarnessResult, rebuild_result
from runners.rollouts.pool import BreakerOpen
from runners.rollouts.reward import make_reward
from runners.sandboxes.contract import Sandbox, SandboxError
from runners.system.concurrency.limits import Admission, TokenBucket
from runners.tasks.contract import DecidingTest, Task, Verdict, VerdictKind
from tests.fakes.rollout_parts import CallingHarness, HostileError, make_result
from tests.runners.rollouts.world import world


async def test_a_good_rollout_is_graded_rewarded_and_kept_token_for_token(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        [record] = await here.pool().run(here.specs(1))
        assert record == here.store.rollout("train-000001-000-00")
        assert (record.outcome.code, record.solved, record.reward) == (
            OutcomeCode.POLICY_FINISHED,
            True,
            0.98,
        )
        assert record.final_message == "all done"
        assert "answer 0" in record.patch
        chains = build_segments(here.store.turns(record.session_id))
        assert sum(int(chain.loss_mask.sum()) for chain in chains) == record.sampled_tokens > 0
        assert set(record.timings) == {*TRANSITIONS, TEARDOWN, "total"} - {Stage.END}


async def test_the_grader_sees_the_outcome_and_what_was_on_the_wire(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        [record] = await here.pool().run(here.specs(1))
        result = here.grader.results[f"{record.session_id}-grade"]
        assert (result.outcome.code, result.verdict) == (OutcomeCode.POLICY_FINISHED, None)
        assert result.summary.final_message == "I am done."
        assert result.summary.usage.sampled_tokens == record.sampled_tokens > 0
        assert result.patch.diff.decode() == record.patch
        summary = here.store.session_summary(record.session_id)
        assert rebuild_result(record, summary) == result, "a later grading sees the same"


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (VerdictKind.SOLVED, OutcomeCode.POLICY_FINISHED),
        (VerdictKind.UNSOLVED, OutcomeCode.POLICY_GAVE_UP),
    ],
)
async def test_an_agent_that_stops_has_given_up_unless_it_has_solved_the_task(
    verdict: VerdictKind, code: OutcomeCode, tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.context = replace(here.context, harness=StoppingAgent())
        here.grader.verdicts = [verdict]
        [record] = await here.pool().run(here.specs(1))
        assert (record.outcome.code, record.outcome.message) == (code, "I stop")
        assert record.extra["agent_code"] == "policy.gave_up"
        result = rebuild_result(record, here.store.session_summary(record.session_id))
        assert result.outcome.code is OutcomeCode.POLICY_GAVE_UP, "as the grader received it"


class StoppingAgent(CallingHarness):
    """Takes a turn and stops without handing in."""

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """End without a result."""
        await super().run(sandbox, context)
        return make_result(OutcomeCode.POLICY_GAVE_UP, "I stop")


TAMPERED = Verdict(
    VerdictKind.UNSOLVED, 1, 1, 1, 1, "tampered", "", 0.1, tampered="canary: 2 of 3 passed"
)


async def test_a_tampered_patch_is_the_policy_s_doing_and_rewarded_as_unsolved(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.grader.verdicts = [TAMPERED]
        config = compose(["reward.partial_credit=0.4", "reward.turn_penalty=0.0"])
        here.context = replace(here.context, reward=make_reward(config.reward))
        [record] = await here.pool().run(here.specs(1))
        assert (record.outcome.code, record.outcome.message) == (
            OutcomeCode.POLICY_TAMPERED,
            "canary: 2 of 3 passed",
        )
        assert (record.solved, record.reward, record.attempt) == (False, 0.0, 0)
        assert record.outcome.meaning.in_baseline
        assert record.extra["agent_code"] == "policy.finished"
        assert record.verdict is not None
        assert record.verdict["tampered"] == "canary: 2 of 3 passed"


class LimitedAgent(CallingHarness):
    """Takes a turn; then the gateway refuses something as too deep, and the program fails."""

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """End as a program does that cannot reach its gateway."""
        await super().run(sandbox, context)
        headers = {"x-api-key": context.api_key}
        async with (
            aiohttp.ClientSession(trust_env=False, headers=headers) as http,
            http.post(f"{sandbox.gateway_url}/v1/messages", data=b"[" * 1000) as response,
        ):
            assert response.status == 400
        return make_result(OutcomeCode.INFRA_GATEWAY)


async def test_a_program_that_fails_after_its_sandbox_asked_for_too_much_is_not_retried(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.context = replace(here.context, harness=LimitedAgent())
        here.grader.verdicts = [VerdictKind.UNSOLVED]
        [record] = await here.pool().run(here.specs(1))
        assert record.outcome.code is OutcomeCode.POLICY_REQUEST_LIMITS
        assert (record.attempt, record.reward is not None, record.solved) == (0, True, False)
        assert record.outcome.meaning.in_baseline
        assert record.extra["session"]["over_limit"] == 1


async def test_a_record_names_the_deciding_tests(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        tests = (
            DecidingTest("t::a", "fail_to_pass", "passed"),
            DecidingTest("t::b", "fail_to_pass", "missing"),
            DecidingTest("t::c", "pass_to_pass", "passed"),
            DecidingTest("t::d", "pass_to_pass", "failed"),
        )
        here.grader.verdicts = [replace(TAMPERED, tampered="", tests=tests)]
        [record] = await here.pool().run(here.specs(1))
        assert record.verdict is not None
        assert record.verdict["tests"] == {
            "passed": ["t::a"],
            "missing": ["t::b"],
            "failed": ["t::d"],
        }


@pytest.mark.parametrize(
    ("trouble", "code", "stage"),
    [
        (ValueError("braces {} and %s"), OutcomeCode.INTERNAL_ERROR, Stage.HARNESS),
        (HostileError(), OutcomeCode.INTERNAL_ERROR, Stage.HARNESS),
        (asyncio.CancelledError("a library's own"), OutcomeCode.INTERNAL_ERROR, Stage.HARNESS),
        (TimeoutError("nobody's deadline"), OutcomeCode.INTERNAL_ERROR, Stage.HARNESS),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            OutcomeCode.INTERNAL_ERROR,
            Stage.HARNESS,
        ),
        (SandboxError("the sandbox is gone"), OutcomeCode.INFRA_SANDBOX_LOST, Stage.HARNESS),
        (make_result(OutcomeCode.INFRA_HARNESS), OutcomeCode.INFRA_HARNESS, Stage.HARNESS),
        (
            make_result(OutcomeCode.POLICY_FINISHED),
            OutcomeCode.INFRA_HARNESS,
            Stage.HARNESS,
        ),  # without a single model call
    ],
)
async def test_one_failing_rollout_is_recorded_without_a_reward_and_harms_no_other(
    tmp_path: Path,
    task: Task,
    trouble: BaseException | HarnessResult,
    code: OutcomeCode,
    stage: Stage,
) -> None:
    async with world(tmp_path, task) as here:
        here.harness.trouble = lambda number: trouble if number == 0 else None
        records = await here.pool(attempts=1, concurrency=1).run(here.specs(3))
        failed, *others = sorted(records, key=lambda record: record.rollout_id)
        assert (failed.outcome.code, failed.outcome.stage) == (code, stage)
        assert failed.reward is None
        assert failed.solved is None
        assert [other.reward for other in others] == [0.98, 0.98]


async def test_an_infrastructure_failure_is_tried_again_in_a_fresh_sandbox_and_one_attempt_counts(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.backend.failures = 2
        [record] = await here.pool().run(here.specs(1))
        assert record.attempt == 2
        assert record.solved
        attempts = here.stored()["train-000001-000-00"]
        assert [(one.attempt, one.counts) for one in attempts] == [
            (0, False),
            (1, False),
            (2, True),
        ]
        assert len(set(here.backend.made)) == 3
        assert [event.data["attempt"] for event in here.store.events("retry")] == [0, 1]


async def test_a_grader_that_cannot_grade_gives_no_reward(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        here.grader.verdicts = [VerdictKind.INFRA]
        [record] = await here.pool(attempts=2).run(here.specs(1))
        assert record.outcome.code is OutcomeCode.GRADER_ERROR
        assert record.reward is None
        assert record.turns == 1, "the finished trajectory is kept for regrading"


async def test_a_trajectory_is_stored_before_it_is_graded(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        here.grader.verdicts = [RuntimeError("the grader fell over")]
        [record] = await here.pool(attempts=1).run(here.specs(1))
        assert record.outcome.code is OutcomeCode.GRADER_ERROR
        assert record.outcome.stage is Stage.GRADE
        assert "answer 0" in record.patch


async def test_a_sandbox_that_never_boots_meets_its_deadline(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        here.backend.hangs = True
        deadlines = here.context.deadlines.model_copy(update={"boot_s": 0.2})
        here.context = replace(here.context, deadlines=deadlines)
        [record] = await here.pool(attempts=1).run(here.specs(1))
        assert record.outcome.code is OutcomeCode.INFRA_SANDBOX_START


async def test_what_hangs_outside_its_own_deadline_ends_at_the_stage_s_and_says_what_it_awaited(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.harness.hangs = True
        changes = {"harness_s": 0.1, "teardown_s": 0.2}
        here.context = replace(
            here.context, deadlines=here.context.deadlines.model_copy(update=changes)
        )
        [record] = await here.pool(attempts=1).run(here.specs(1))
        assert (record.outcome.code, record.outcome.stage) == (
            OutcomeCode.INFRA_HARNESS,
            Stage.HARNESS,
        )
        assert "sleep" in record.extra["pending"]
        assert record.timings["harness"] >= 0.3


async def test_the_guard_ends_an_attempt_that_keeps_within_every_other_deadline(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.harness.hangs = True
        deadlines = here.context.deadlines.model_copy(update={"guard_s": 0.3})
        here.context = replace(here.context, deadlines=deadlines)
        [record] = await here.pool(attempts=1).run(here.specs(1))
        assert record.outcome.code is OutcomeCode.INTERNAL_GUARD
        assert "sleep" in record.extra["pending"]


async def test_a_cancelled_attempt_is_recorded_and_does_not_count(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.harness.hangs = True
        running = asyncio.create_task(here.pool().run(here.specs(2)))
        while here.harness.busy < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not here.backend.alive
        assert len(here.stored()) == 2
        for [record] in here.stored().values():
            assert record.outcome.code is OutcomeCode.CANCELLED_USER
            assert not record.counts
        here.harness.hangs = False
        records = await here.pool().run(here.specs(2))
        assert [(record.attempt, record.solved) for record in records] == [(1, True)] * 2


async def test_a_store_that_cannot_keep_records_is_more_than_a_rollout_s_failure(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.harness.trouble = lambda _: StoreError("the disk is full", ExitCode.SERVICE_GONE)
        with pytest.raises(StoreError, match="the disk is full"):
            await here.pool().run(here.specs(1))


async def test_sandboxes_that_push_back_lower_the_number_in_flight(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.backend.pushes_back = 1
        admission = Admission(8, adaptive=True)
        [record] = await here.pool(admission=admission).run(here.specs(1))
        assert record.solved
        assert record.attempt == 1
        assert admission.limit < 8


class LateTurn(TokenBucket):
    """A rate limit whose turn comes in an hour of the loop's time, which are 50 ms of ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(None)
        self._monkeypatch = monkeypatch

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time
        self._monkeypatch.setattr(loop, "time", lambda: now() + 3600)
        await asyncio.sleep(0.05)


async def test_queueing_eats_no_deadline_and_is_timed(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, task) as here:
        here.context = replace(here.context, sandbox_starts=LateTurn(monkeypatch))
        [record] = await here.pool(attempts=1).run(here.specs(1))
        assert record.solved
        assert record.timings["queue"] >= 0.05


async def test_a_failing_teardown_is_an_event_and_not_a_result(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        here.backend.fails_to_close = True
        [record] = await here.pool().run(here.specs(1))
        assert record.solved
        [event] = here.store.events("teardown_failed")
        assert "device busy {} %s" in event.data["error"]


async def test_no_more_rollouts_are_in_flight_than_allowed(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        records = await here.pool(concurrency=3).run(here.specs(9))
        assert len(records) == len(here.done) == 9
        assert here.harness.most_busy <= 3


async def test_failures_in_a_row_open_the_breaker_with_the_reason(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        here.backend.failures = 1000
        with pytest.raises(
            BreakerOpen, match=r"4 attempts in a row failed with infra.*no room for a sandbox"
        ):
            await here.pool(breaker=4).run(here.specs(20))
        assert len(here.backend.made) < 10


@pytest.mark.parametrize(
    ("trouble", "failing", "code"),
    [
        (SandboxError("lost"), OutcomeClass.INFRA, ExitCode.SERVICE_GONE),
        (ValueError("ours"), OutcomeClass.INTERNAL, ExitCode.FAILURE_BUDGET),
    ],
)
async def test_the_breaker_counts_each_class_and_its_exit_code_says_whose_fault_it_is(
    tmp_path: Path, task: Task, trouble: Exception, failing: OutcomeClass, code: ExitCode
) -> None:
    other = RuntimeError("rarer") if failing is OutcomeClass.INFRA else SandboxError("rarer")
    async with world(tmp_path, task) as here:
        here.harness.trouble = lambda number: trouble if number % 3 else other
        with pytest.raises(BreakerOpen, match=f"4 attempts in a row failed with {failing}") as end:
            await here.pool(breaker=4, concurrency=1, attempts=1).run(here.specs(20))
        assert end.value.exit_code is code
        assert here.harness.runs == 6, "two of the rarer ones lie between the four"


async def test_scattered_failures_do_not_open_the_breaker(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        here.harness.trouble = lambda number: SandboxError("lost") if number % 2 else None
        records = await here.pool(breaker=2, concurrency=1).run(here.specs(6))
        assert all(record.solved for record in records)


async def test_a_drain_finishes_what_is_in_flight_and_starts_nothing_new(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:

        def drain(number: int) -> None:
            if number == 2:
                here.draining.set()

        here.harness.trouble = drain
        records = await here.pool(concurrency=1).run(here.specs(8))
        assert [record.solved for record in records] == [True, True, True]


async def test_a_resumed_rollout_takes_an_attempt_number_nobody_used(
    tmp_path: Path, task: Task
) -> None:
    async with world(tmp_path, task) as here:
        await here.context.gateway.create_session(
            "train-000001-000-00-a0", seed=1
        )  # its driver died right after this
        [record] = await here.pool().run(here.specs(1))
        assert record.session_id == "train-000001-000-00-a1"
        assert record.solved
        await here.context.gateway.delete("train-000001-000-00-a0")


async def test_what_the_agent_program_said_of_itself_is_kept(tmp_path: Path, task: Task) -> None:
    facts = {"program": "an agent", "version": "1.2.3"}
    async with world(tmp_path, task) as here:
        said = replace(make_result(OutcomeCode.INFRA_MODEL), facts=facts, output="no model\n")
        here.harness.trouble = lambda _: said
        [record] = await here.pool(attempts=1).run(here.specs(1))
        assert record.extra["harness"] == facts
        assert record.extra["output"] == "no model\n"


async def test_what_the_agent_tried_to_reach_is_kept(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        here.backend.tries_hosts = True
        [record] = await here.pool(attempts=1).run(here.specs(1))
        tried = {"host": "pypi.org", "port": 443, "allowed": False, "count": 2}
        assert record.extra["egress"] == [tried]


async def test_an_attempts_session_has_the_runs_turns(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        here.context = replace(here.context, max_turns=3)
        [record] = await here.pool().run(here.specs(1))
        assert here.store.sessions()[record.session_id]["max_turns"] == 3


async def test_an_attempts_sandbox_is_made_of_its_tasks_image(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, replace(task, image="swe:1", workdir="/testbed")) as here:
        await here.pool().run(here.specs(1))
        assert here.backend.images == [("swe:1", "/testbed")]

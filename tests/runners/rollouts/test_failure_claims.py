"""The end of an agent program is a claim, because its sandbox's commands may speak in its name: the
gateway's own account decides whether a service of the infrastructure failed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentrl.testing.completions import Completion
from runners.engines.contract import Engine, Generation, SamplingParams
from runners.gateway.service import GatewayHooks
from runners.records.outcome import OutcomeClass, OutcomeCode
from runners.records.record import RolloutRecord
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.sandboxes.contract import KilledError, Sandbox
from runners.tasks.contract import Task, VerdictKind
from tests.fakes.rollout_parts import make_result
from tests.runners.rollouts.world import world

FINISHED, ENDED = OutcomeCode.POLICY_FINISHED, OutcomeCode.POLICY_AGENT_ENDED
MODEL, GATEWAY = OutcomeCode.INFRA_MODEL, OutcomeCode.INFRA_GATEWAY
WALL = OutcomeCode.BUDGET_WALL
CLAIMS = [code for code in OutcomeCode if code.outcome_class is OutcomeClass.INFRA]
OTHERS = [OutcomeCode.GRADER_ERROR, OutcomeCode.CANCELLED_USER, OutcomeCode.INTERNAL_ERROR]

WELL = Completion("well<|im_end|>")
BROKEN = Completion(status=500)
LOST = Completion(drops=True)
UNREADABLE = Completion(raw=b"?")
NO_SUCH_MODEL = Completion(status=404)
ILL_FORMED = Completion(status=400)
SGLANGS_LIMIT = "The input (50000 tokens) is longer than the model's context length (40960 tokens)."
VLLMS_LIMIT = "This model's maximum context length is 40960 tokens. However, you requested 50000."


class ClaimingAgent:
    """Makes requests of threads, in order, and ends with a claim, whatever was answered."""

    def __init__(self, claim: OutcomeCode, *threads: str) -> None:
        self.claim = claim
        self.threads = threads
        self.statuses: list[int] = []
        self.answers: list[str] = []

    def mounts(self) -> dict[str, Path]:
        """Need nothing."""
        return {}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Make the requests; each has a text of its own."""
        async with aiohttp.ClientSession(trust_env=False) as http:
            for number, thread in enumerate(self.threads):
                headers = {"x-api-key": context.api_key}
                if thread:
                    headers["x-claude-code-agent-id"] = thread
                message = {"role": "user", "content": f"request {number}"}
                body = {"model": "p", "max_tokens": 50, "messages": [message]}
                url = f"{sandbox.gateway_url}/v1/messages"
                async with http.post(url, json=body, headers=headers) as response:
                    self.answers.append(await response.text())
                    self.statuses.append(response.status)
        return make_result(self.claim)


async def end_of(
    tmp_path: Path,
    task: Task,
    agent: ClaimingAgent,
    answers: list[Completion],
    *,
    hooks: GatewayHooks | None = None,
) -> RolloutRecord:
    """Return the first attempt's record of a rollout."""
    changes: dict[str, Any] = {"engine_attempts": 1}
    if hooks is not None:
        changes["hooks"] = hooks
    async with world(tmp_path, task, **changes) as here:
        here.engine.always = None
        here.engine.say(*answers)
        here.context = replace(here.context, harness=agent)
        here.grader.verdicts = [VerdictKind.UNSOLVED]
        await here.pool(attempts=1).run(here.specs(1))
        [record] = here.stored()["train-000001-000-00"]
        return record


@pytest.mark.parametrize("claim", [*CLAIMS, *OTHERS])
async def test_a_failure_that_the_gateway_does_not_know_is_the_policys(
    tmp_path: Path, task: Task, claim: OutcomeCode
) -> None:
    record = await end_of(tmp_path, task, ClaimingAgent(claim, ""), [WELL])
    assert record.outcome.code is ENDED
    assert record.solved is False
    assert record.reward is not None
    assert record.outcome.meaning.in_baseline
    assert not record.outcome.meaning.retryable
    assert claim in record.outcome.message
    assert record.extra["session"]["failed_service"] is None


class KilledAgent(ClaimingAgent):
    """Makes its requests, and then loses its sandbox."""

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """End with the error of a sandbox whose first process was killed."""
        await super().run(sandbox, context)
        raise KilledError("killed")


async def test_the_end_of_a_sandbox_is_the_policys_once_it_had_a_turn(
    tmp_path: Path, task: Task
) -> None:
    record = await end_of(tmp_path, task, KilledAgent(FINISHED, ""), [WELL])
    assert record.outcome.code is ENDED
    assert record.reward is not None
    assert "killed" in record.outcome.message


async def test_the_end_of_a_sandbox_before_the_first_turn_is_the_machines(
    tmp_path: Path, task: Task
) -> None:
    record = await end_of(tmp_path, task, KilledAgent(FINISHED), [])
    assert record.outcome.code is OutcomeCode.INFRA_SANDBOX_LOST
    assert record.reward is None


@pytest.mark.parametrize("failure", [BROKEN, LOST, UNREADABLE, NO_SUCH_MODEL])
@pytest.mark.parametrize("claim", [MODEL, GATEWAY, OutcomeCode.INFRA_HARNESS, WALL])
async def test_a_failure_of_the_engine_is_one_whatever_the_program_calls_it(
    tmp_path: Path, task: Task, claim: OutcomeCode, failure: Completion
) -> None:
    record = await end_of(tmp_path, task, ClaimingAgent(claim, "", ""), [WELL, failure, failure])
    assert (record.outcome.code, record.reward) == (MODEL, None)
    assert record.turns == 1
    assert record.extra["session"]["failed_service"] == "engine"


async def test_an_engine_that_fails_from_the_first_request_on_is_no_wall(
    tmp_path: Path, task: Task
) -> None:
    record = await end_of(tmp_path, task, ClaimingAgent(WALL, ""), [BROKEN])
    assert (record.outcome.code, record.turns) == (MODEL, 0)


class SilentAgent(ClaimingAgent):
    """A program that is ended before it prints anything."""

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """End with the claim and no output."""
        return replace(await super().run(sandbox, context), output="\n")


async def test_an_outcome_names_the_failed_service_where_the_program_printed_nothing(
    tmp_path: Path, task: Task
) -> None:
    record = await end_of(tmp_path, task, SilentAgent(WALL, ""), [BROKEN])
    assert record.outcome.message == "the engine failed on the agent's last request"


class TalkativeAgent(ClaimingAgent):
    """A program that prints its settings."""

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """End with the key in every text."""
        result = await super().run(sandbox, context)
        self.key = context.api_key
        return replace(result, output=f"key={self.key}", final_message=f"with {self.key}")


@pytest.mark.parametrize("claim", [FINISHED, MODEL])
async def test_no_record_holds_the_key_that_a_program_prints(
    tmp_path: Path, task: Task, claim: OutcomeCode
) -> None:
    agent = TalkativeAgent(claim, "")
    record = await end_of(tmp_path, task, agent, [WELL])
    assert record.final_message == "with ***"
    assert agent.key not in repr(record)


@pytest.mark.parametrize("claim", [FINISHED, OutcomeCode.BUDGET_TURNS])
async def test_an_end_of_the_policys_own_stays_one(
    tmp_path: Path, task: Task, claim: OutcomeCode
) -> None:
    record = await end_of(tmp_path, task, ClaimingAgent(claim, "", ""), [WELL, BROKEN])
    assert record.outcome.code is claim


@pytest.mark.parametrize(
    ("threads", "answers", "code"),
    [
        (("", ""), [BROKEN, WELL], ENDED),
        (("", "a1", "a1"), [WELL, BROKEN, WELL], ENDED),
        (("", "a1", ""), [WELL, BROKEN, WELL], ENDED),
        (("", "a1"), [WELL, BROKEN], MODEL),
        (("", "a1", "a2"), [WELL, BROKEN, WELL], MODEL),
        (("", "", "a1"), [WELL, BROKEN, WELL], MODEL),
    ],
)
async def test_a_failure_is_made_good_by_a_turn_of_its_thread_or_of_the_main_one(
    tmp_path: Path,
    task: Task,
    threads: tuple[str, ...],
    answers: list[Completion],
    code: OutcomeCode,
) -> None:
    record = await end_of(tmp_path, task, ClaimingAgent(MODEL, *threads), answers)
    assert record.outcome.code is code


@pytest.mark.parametrize(
    ("refusal", "too_long"),
    [
        (ILL_FORMED, False),
        (Completion(status=413), True),
        (Completion(status=400, message=SGLANGS_LIMIT), True),
        (Completion(status=400, message=VLLMS_LIMIT), True),
    ],
)
async def test_what_the_engine_refuses_for_its_content_is_no_failure(
    tmp_path: Path, task: Task, refusal: Completion, too_long: bool
) -> None:
    agent = ClaimingAgent(GATEWAY, "", "")
    record = await end_of(tmp_path, task, agent, [WELL, refusal])
    assert (record.outcome.code, agent.statuses) == (ENDED, [200, 400])
    assert ('"prompt is too long' in agent.answers[1]) == too_long


class BrokenEngine:
    """An engine client with a defect: it raises what nobody foresaw, from its second call on."""

    def __init__(self, real: Engine) -> None:
        self.real = real
        self.calls = 0

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Answer once."""
        self.calls += 1
        if self.calls > 1:
            raise ZeroDivisionError("a defect of the gateway")
        return await self.real.generate(input_ids, params, rid=rid)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize("claim", [MODEL, GATEWAY, WALL])
async def test_a_failure_of_the_gateway_is_its_own(
    tmp_path: Path, task: Task, claim: OutcomeCode
) -> None:
    wrap: Callable[..., Any] = lambda engine, turn_log: BrokenEngine(engine)  # noqa: E731
    record = await end_of(
        tmp_path,
        task,
        ClaimingAgent(claim, "", ""),
        [WELL],
        hooks=GatewayHooks(wrap_engine=wrap),
    )
    assert (record.outcome.code, record.reward) == (GATEWAY, None)
    assert record.extra["session"]["failed_service"] == "gateway"


async def test_a_real_failure_is_tried_again(tmp_path: Path, task: Task) -> None:
    agent = ClaimingAgent(MODEL, "", "")
    async with world(tmp_path, task, engine_attempts=1) as here:
        here.engine.always = None
        here.engine.say(WELL, BROKEN, WELL, WELL)
        here.context = replace(here.context, harness=agent)
        await here.pool(attempts=3).run(here.specs(1))
        [first, second] = here.stored()["train-000001-000-00"]
    assert (first.outcome.code, first.counts) == (MODEL, False)
    assert (second.outcome.code, second.counts) == (ENDED, True)

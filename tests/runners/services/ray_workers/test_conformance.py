"""Attempts in the driver's process and on a node: the same outcomes, the same ledger."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agentrl.testing.completions import Completion
from runners.records.outcome import TEARDOWN, OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.session_summary import FinishReason
from runners.records.store.store_error import StoreError
from runners.rollouts.contract import rebuild_result
from runners.tasks.contract import Task, Verdict
from runners.tasks.grading import Grader, RolloutResult
from tests.fakes.rollout_parts import PatchGrader
from tests.runners.services.ray_workers.world import SOLUTION, Where, World, use, world
from tests.runners.tasks.example_repositories import FIX

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_cache")]

HANG = Completion(delay_s=60)


@pytest.fixture(params=get_args(Where))
def where(request: pytest.FixtureRequest) -> Where:
    found: Where = request.param
    return found


def plan(tmp_path: Path, *rules: dict[str, Any]) -> list[str]:
    """Return the overrides of a fault plan."""
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps({"seed": 0, "rules": rules}))
    return ["faults=file", f"faults.path={file}"]


def stored(here: World) -> list[RolloutRecord]:
    """Return the records of the store."""
    return here.store.rollouts()


def left(here: World) -> list[tuple[str, str]]:
    """Return the kind and name of everything in the ledger."""
    return [(entry.kind, entry.name) for entry in here.ledger.entries()]


async def test_a_solved_attempt_went_through_every_stage(
    where: Where, tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world(where, tmp_path, tokenizer_dir) as here:
        here.engine.say(*SOLUTION)
        finished = await here.attempt()
        record = finished.record
        assert record.outcome.code is OutcomeCode.POLICY_FINISHED
        assert (record.solved, record.final_message, record.turns) == (True, "done", 2)
        assert record.tool_turns == 2, "the session's summary reached where it was graded"
        assert set(record.timings) == {*Stage, TEARDOWN, "total"} - {Stage.END}
        assert record.timings["queue"] >= 0.5
        assert "+    return a + b" in record.patch
        assert record.extra.get("node") == (None if where == "here" else "node/1")
        assert not record.counts
        assert not finished.pushed_back
        assert left(here) == []
        [before_grading] = stored(here)
        assert before_grading.patch == record.patch
        assert before_grading.solved is None


@dataclass
class Observed(PatchGrader):
    """A grader that keeps what it was given."""

    real: Grader
    results: list[RolloutResult] = field(default_factory=list)

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        self.results.append(result)
        return await self.real.grade(task, result, name=name, deadline_s=deadline_s)


async def test_the_grader_receives_what_the_native_agent_said_and_did(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("here", tmp_path, tokenizer_dir) as here:
        grader = Observed(here.context.grader)
        here.context = replace(here.context, grader=grader)
        here.engine.say(*SOLUTION)
        record = (await here.attempt()).record
        [result] = grader.results
        rebuilt = rebuild_result(record, here.store.session_summary(record.session_id))
    calls = [(call.name, json.loads(call.arguments)) for call in result.summary.tool_calls]
    assert calls == [
        ("Bash", {"command": f"cat > calc/add.py <<'END'\n{FIX}END"}),
        ("Submit", {"message": "done"}),
    ]
    assert (result.outcome.code, result.outcome.message) == (OutcomeCode.POLICY_FINISHED, "done")
    summary = result.summary
    assert (summary.turns, summary.tool_turns, record.tool_turns) == (2, 2, 2)
    assert summary.usage.sampled_tokens == sum(len(i) for i, _ in here.engine.seen.answered)
    assert (summary.finish_reason, summary.final_message) == (FinishReason.STOP, "")
    assert result.patch.files == ("calc/add.py",)
    assert result.verdict is None
    assert rebuilt == result, "a later grading receives the same"


async def test_session_and_sandbox_are_registered_before_they_are_made(
    where: Where, tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world(where, tmp_path, tokenizer_dir) as here:
        here.engine.always = HANG
        running = asyncio.create_task(here.attempt())
        await here.engine.arrived.wait()
        name = "train-000001-000-00-a0"
        assert left(here) == [("session", name), ("sandbox", name)]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_cancelled_attempt_leaves_its_record_and_nothing_else(
    where: Where, tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world(where, tmp_path, tokenizer_dir) as here:
        here.engine.always = HANG
        running = asyncio.create_task(here.attempt())
        await here.engine.arrived.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        [record] = stored(here)
        assert record.outcome.code is OutcomeCode.CANCELLED_USER
        assert left(here) == []
        assert not list((tmp_path / "sandboxes" / "open").glob("*"))


FAULTS: list[tuple[dict[str, Any], OutcomeCode]] = [
    ({"where": "sandbox_boot", "what": "error"}, OutcomeCode.INFRA_SANDBOX_START),
    ({"where": "session", "what": "status", "status": 503}, OutcomeCode.INFRA_GATEWAY),
    ({"where": "exec", "what": "death", "seconds": 0.0}, OutcomeCode.INFRA_SANDBOX_LOST),
    ({"where": "patch", "what": "exception"}, OutcomeCode.INTERNAL_ERROR),
    ({"where": "finish", "what": "cut"}, OutcomeCode.INFRA_GATEWAY),
    ({"where": "grade", "what": "error"}, OutcomeCode.GRADER_ERROR),
    ({"where": "grade", "what": "hostile"}, OutcomeCode.GRADER_ERROR),
    ({"where": "store", "what": "exception"}, OutcomeCode.INTERNAL_ERROR),
    ({"where": "store", "what": "cancelled"}, OutcomeCode.INTERNAL_ERROR),
]


async def test_a_fault_ends_in_the_same_outcome_and_is_recorded(
    where: Where, tmp_path: Path, tokenizer_dir: Path
) -> None:
    rules = [
        rule | {"when": {"rollouts": f"*-{member:02d}"}} for member, (rule, _) in enumerate(FAULTS)
    ]
    async with world(where, tmp_path, tokenizer_dir, *plan(tmp_path, *rules)) as here:
        here.engine.always = use("Submit", message="nothing")
        specs = [here.spec(member) for member in range(len(FAULTS))]
        records = await here.pool(attempts=1).run(specs)
        ended = {record.member: record.outcome.code for record in records}
        assert ended == {member: code for member, (_, code) in enumerate(FAULTS)}
        kept = {(event.data["where"], event.data["what"]) for event in here.store.events("fault")}
        assert kept == {(rule["where"], rule["what"]) for rule, _ in FAULTS}
        assert left(here) == []


async def test_a_sandbox_that_dies_at_a_turn_is_lost(
    where: Where, tmp_path: Path, tokenizer_dir: Path
) -> None:
    overrides = plan(tmp_path, {"where": "turn", "what": "death", "seconds": 0.0})
    async with world(where, tmp_path, tokenizer_dir, *overrides) as here:
        here.engine.say(SOLUTION[0], HANG)
        record = (await here.attempt()).record
        assert record.outcome.code is OutcomeCode.INFRA_SANDBOX_LOST
        assert left(here) == []


async def test_a_full_disk_ends_more_than_the_attempt(
    where: Where, tmp_path: Path, tokenizer_dir: Path
) -> None:
    overrides = plan(tmp_path, {"where": "store", "what": "disk_full"})
    async with world(where, tmp_path, tokenizer_dir, *overrides) as here:
        here.engine.say(*SOLUTION)
        with pytest.raises(StoreError, match="the disk is full"):
            await here.attempt()


async def test_a_pool_retries_and_one_attempt_counts(
    where: Where, tmp_path: Path, tokenizer_dir: Path
) -> None:
    overrides = plan(tmp_path, {"where": "exec", "what": "error", "when": {"attempts": 1}})
    async with world(where, tmp_path, tokenizer_dir, *overrides) as here:
        here.engine.always = use("Submit", message="nothing")
        records = await here.pool().run([here.spec(member) for member in range(3)])
        assert [record.attempt for record in records] == [1, 1, 1]
        assert len(stored(here)) == 6
        assert sum(record.counts for record in stored(here)) == 3
        assert left(here) == []

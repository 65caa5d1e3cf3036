"""Attempts at Harbor tasks: the sandbox itself is graded, after its session has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import pytest

from runners.records.outcome import OutcomeCode
from runners.records.record import RolloutRecord
from runners.rollouts.attempt import execute_here
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.sandboxes.contract import OversizedError, Sandbox
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.wrappers import RegisteredBackend
from runners.system.processes.ledger import Ledger, StoreRecorder
from runners.tasks.contract import Task
from runners.tasks.grading.graders.end_state import EndStateGrader
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.harbor.suites import read_task
from runners.tasks.repositories.task_repositories import TaskRepositories
from tests.fakes.harbor_tasks import SOLVE, TEST, toml, write_task
from tests.fakes.rollout_parts import make_result
from tests.fakes.sandbox_backends import local_settings, skip_without
from tests.runners.rollouts.world import World, world

pytestmark = pytest.mark.integration


@dataclass
class ScriptHarness:
    """An agent that takes one turn, runs a script in its sandbox, and ends as it is told."""

    script: str
    code: OutcomeCode = OutcomeCode.POLICY_FINISHED
    fills_disk: bool = False
    contexts: list[HarnessContext] = field(default_factory=list)
    sandboxes: list[Sandbox] = field(default_factory=list)

    def mounts(self) -> dict[str, Path]:
        """Need nothing."""
        return {}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Take the turn from outside, then run the script."""
        self.contexts.append(context)
        self.sandboxes.append(sandbox)
        body = {"model": "policy", "max_tokens": 50}
        messages = [{"role": "user", "content": context.prompt}]
        async with (
            aiohttp.ClientSession(trust_env=False) as http,
            http.post(
                f"{sandbox.spec.gateway_url}/v1/messages",
                json={**body, "messages": messages},
                headers={"x-api-key": context.api_key},
            ) as response,
        ):
            assert response.status == 200, await response.text()
        await sandbox.run(["bash", "-c", self.script], deadline_s=10)
        if self.fills_disk:
            raise OversizedError("the disk is full")
        return make_result(self.code, "done")


@asynccontextmanager
async def harbor_world(tmp_path: Path, task: Task) -> AsyncIterator[World]:
    """Start a world whose sandboxes and grader are real."""
    skip_without("bubblewrap")
    backend = await asyncio.to_thread(LocalBackend, local_settings(), tmp_path / "local")
    try:
        async with world(tmp_path, task) as here:
            recorder = StoreRecorder(here.store, Ledger(here.store))
            registered = RegisteredBackend(backend, recorder)
            ensure = TaskRepositories(registered, tmp_path / "workspaces").ensure
            grader = TaskGrader(
                SandboxGrader(registered),
                ensure,
                end_states=EndStateGrader(registered, ensure),
                log_dir=tmp_path / "run",
            )
            deadlines = here.context.deadlines.model_copy(update={"boot_s": 30, "grade_s": 30})
            context = replace(
                here.context, backend=registered, grader=grader, ready=ensure, deadlines=deadlines
            )
            yield replace(here, context=context, execute=execute_here(recorder))
    finally:
        await backend.close()


async def attempt(tmp_path: Path, place: Path, harness: ScriptHarness) -> RolloutRecord:
    """Return the record of one rollout."""
    async with harbor_world(tmp_path, read_task(place)) as here:
        here = replace(here, context=replace(here.context, harness=harness))
        await here.pool(attempts=1).run(here.specs(1))
        (record,) = here.stored()["train-000001-000-00"]
        return record


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep layouts of each test apart."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def test_a_rollout_is_paid_for_the_end_state_of_its_sandbox(tmp_path: Path) -> None:
    place = write_task(tmp_path / "one", {"tests/test.sh": f"{TEST}echo printed\n"})
    record = await attempt(tmp_path, place, ScriptHarness(SOLVE))
    assert record.outcome.code is OutcomeCode.POLICY_FINISHED, record
    assert record.solved
    assert record.reward == pytest.approx(1 - 0.16 / 8)
    assert record.patch == ""
    assert record.verdict is not None
    assert record.verdict["rewards"] == {"reward": 1.0}
    assert {"harness", "finish", "grade"} <= record.timings.keys()
    assert "patch" not in record.timings
    (log,) = (tmp_path / "run" / "logs" / "grading" / "example__one").iterdir()
    assert log.read_text() == "printed\n"


async def test_the_verifier_runs_after_an_agent_that_ran_out_of_time(tmp_path: Path) -> None:
    place = write_task(tmp_path / "one", {"task.toml": toml(agent="timeout_sec = 2.5")})
    harness = ScriptHarness(SOLVE, OutcomeCode.BUDGET_WALL)
    record = await attempt(tmp_path, place, harness)
    assert record.outcome.code is OutcomeCode.BUDGET_WALL
    assert record.solved
    assert harness.contexts[0].deadline_s == 2.5


async def test_our_time_counts_where_the_tasks_is_longer(tmp_path: Path) -> None:
    harness = ScriptHarness("true")
    record = await attempt(tmp_path, write_task(tmp_path / "one"), harness)
    assert record.solved is False
    assert record.reward == pytest.approx(-0.16 / 8)
    assert harness.contexts[0].deadline_s == 5


async def test_an_agent_that_fills_the_disk_is_unsolved_without_a_verifier(tmp_path: Path) -> None:
    place = write_task(tmp_path / "one")
    record = await attempt(tmp_path, place, ScriptHarness(SOLVE, fills_disk=True))
    assert record.outcome.code is OutcomeCode.POLICY_FILLED_DISK
    assert record.solved is False
    assert record.verdict is not None
    assert record.verdict["rewards"] == {}


async def test_a_link_to_the_tests_is_the_outcome_tampered(tmp_path: Path) -> None:
    place = write_task(tmp_path / "one")
    record = await attempt(tmp_path, place, ScriptHarness("ln -s /tests/x /app/answer.txt"))
    assert record.outcome.code is OutcomeCode.POLICY_TAMPERED
    assert record.solved is False


async def test_a_sandbox_that_is_not_healthy_is_no_rollout_of_the_policy(tmp_path: Path) -> None:
    check = 'command = "false"\ninterval_sec = 0.01'
    place = write_task(tmp_path / "one", {"task.toml": toml(environment_healthcheck=check)})
    harness = ScriptHarness(SOLVE)
    record = await attempt(tmp_path, place, harness)
    assert record.outcome.code is OutcomeCode.INFRA_SANDBOX_START
    assert record.solved is None
    assert not harness.contexts


async def test_a_verifier_without_a_verdict_anywhere_is_a_grader_error(tmp_path: Path) -> None:
    place = write_task(tmp_path / "one", {"tests/test.sh": "#!/bin/bash\n"})
    record = await attempt(tmp_path, place, ScriptHarness(SOLVE))
    assert record.outcome.code is OutcomeCode.GRADER_ERROR
    assert record.reward is None

"""A rollout on every backend: the agent works, its patch is captured and graded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from conf.sections.harness import NativeHarnessConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext
from runners.rollouts.harnesses.native import NativeHarness
from runners.sandboxes.contract import SandboxSpec
from runners.tasks.contract import Patch, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.workspace_diff import diff_workspace
from tests.fakes.sandbox_backends import NAMES, BackendUnderTest, open_backend
from tests.fakes.scripted_gateway import Reply, scripted_gateway, use
from tests.runners.tasks.example_repositories import FIX, make_task

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
HARNESS = NativeHarness(
    NativeHarnessConfig(kind="native", max_turns=3, max_tokens=7, memory_mb=512, cpu_s=20),
    LinearScenarioConfig(kind="linear"),
)


@pytest_asyncio.fixture(params=NAMES, scope="module", loop_scope="module")
async def tested(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BackendUnderTest]:
    async with open_backend(request.param, tmp_path_factory.mktemp(request.param)) as tested:
        yield tested


async def test_an_agents_fix_is_captured_and_graded_as_solved(
    tested: BackendUnderTest, tmp_path: Path
) -> None:
    if tested.name == "docker":
        pytest.skip("containers do not reach a gateway on this machine's loopback")
    task = make_task(tmp_path / "task")
    script = [
        Reply([use("Bash", command=f"cat > calc/add.py <<'END'\n{FIX}END\ngit commit -qam fix")]),
        Reply([use("Submit", message="done")]),
    ]
    async with scripted_gateway(tmp_path, script) as gateway:
        spec = SandboxSpec(
            "agent",
            task.repo,
            "gateway",
            gateway_control=gateway.control,
            gateway_url=gateway.url,
            session_key="key",
            mounts=HARNESS.mounts(),
        )
        sandbox = await tested.backend.create(spec)
        try:
            context = HarnessContext("Fix it.", "key", "policy", deadline_s=30)
            result = await HARNESS.run(sandbox, context)
            assert result.code is OutcomeCode.POLICY_FINISHED, result
            async with sandbox.on_host(leave_out=(".git",)) as workspace:
                patch = diff_workspace(task, workspace)
        finally:
            await sandbox.close()
    assert patch.files == ("calc/add.py",)
    grader = SandboxGrader(tested.backend)
    verdict = await grader.grade(task, patch, name="agent-grade", deadline_s=30)
    assert verdict.kind is VerdictKind.SOLVED, verdict


async def test_a_patch_that_does_not_apply_is_unsolved(
    tested: BackendUnderTest, tmp_path: Path
) -> None:
    task = make_task(tmp_path / "task")
    diff = b"diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-x\n+y\n"
    broken = Patch(diff, sha256="x", files=("no",), protected_touched=())
    verdict = await SandboxGrader(tested.backend).grade(task, broken, name="g", deadline_s=30)
    assert verdict.kind is VerdictKind.UNSOLVED
    assert verdict.reason == "patch does not apply: no: No such file or directory"
    if tested.server is not None:
        assert not tested.server.machines

"""Tools that fail inside the sandbox, under the real agent program."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.fault_table import FaultKind
from conf.sections.harness import NativeHarnessConfig
from conf.sections.sandbox import LocalSandboxConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.native import NativeHarness
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.services.faults.native_tools import FaultyToolsHarness
from runners.services.faults.plan import FaultPlan, Injection
from tests.fakes.running_gateway import running_gateway
from tests.runners.services.faults.run_parts import ROLLOUT, SESSION, RunParts, make_plan

pytestmark = pytest.mark.integration


def agent_settings() -> NativeHarnessConfig:
    """Return the agent's settings of the YAML, with enough tokens for an answer."""
    section = compose(["harness.max_tokens=500"]).harness
    assert isinstance(section, NativeHarnessConfig)
    return section


async def run_agent(
    parts: RunParts, plan: FaultPlan, isolation: str = "none", deadline_s: float = 30.0
) -> tuple[HarnessResult, list[str]]:
    """Run the native agent, which reads a file and submits.

    Returns its result, and the tool results that it read.
    """
    read = [{"type": "tool_use", "name": "Read", "input": {"path": "calc/add.py"}}]
    submit = [{"type": "tool_use", "name": "Submit", "input": {"message": "done"}}]
    harness = FaultyToolsHarness(
        NativeHarness(agent_settings(), LinearScenarioConfig(kind="linear")),
        Injection(plan, parts.store),
    )
    async with (
        ScriptedEngine() as engine,
        running_gateway(
            engine.url, parts.tokenizer, parts.tmp_path / "run", make_run=False
        ) as gateway,
    ):
        engine.say(spoken(read), spoken(submit))
        agent = await gateway.session(SESSION)
        backend = parts.sandboxes if isolation == "none" else isolated(parts.tmp_path)
        spec = SandboxSpec(
            SESSION, parts.task.repo, "gateway", gateway.url, Path(gateway.control), agent.key,
            harness.mounts(),
        )  # fmt: skip
        sandbox = await backend.create(spec)
        try:
            context = HarnessContext("Fix it.", agent.key, "policy", deadline_s)
            result = await harness.run(sandbox, context)
        finally:
            await sandbox.close()
            if backend is not parts.sandboxes:
                await backend.close()
        tool_results = [
            message["content"]
            for turn in gateway.turns(SESSION)
            for message in turn.request["messages"]
            if message["role"] == "tool"
        ]
        return result, tool_results


def isolated(root: Path) -> LocalBackend:
    """Return sandboxes as isolated as this machine can."""
    settings = LocalSandboxConfig(
        kind="local", isolation="auto", memory_mb=512, processes=32, file_mb=8, cpu_s=20, warm=0
    )
    return LocalBackend(settings, root / "isolated")


@pytest.mark.parametrize(
    ("what", "start"),
    [
        ("error", "Error: injected"),
        ("timeout", "Error: TimeoutError"),
        ("disk_full", "Error: No space left on device"),
        ("garbage", "\ufffd\ufffd\0{not json"),
        ("hostile", "Error: {} {0} {name} %s"),
        ("delay", "def add"),
    ],
)
async def test_the_policy_reads_the_failure_of_a_tool(
    parts: RunParts, what: FaultKind, start: str
) -> None:
    result, texts = await run_agent(parts, make_plan("tool", what, k=1))
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done")
    assert [text.startswith(start) for text in texts] == [True], texts
    assert parts.injected() == [("tool", what, ROLLOUT, 1)]


async def test_a_tool_also_fails_in_an_isolated_sandbox(parts: RunParts) -> None:
    result, texts = await run_agent(parts, make_plan("tool", "error", k=1), isolation="auto")
    assert (result.code, texts) == (OutcomeCode.POLICY_FINISHED, ["Error: injected"])


async def test_a_tool_that_crashes_the_agent_is_an_infrastructure_failure(
    parts: RunParts,
) -> None:
    result, texts = await run_agent(parts, make_plan("tool", "exception", k=1))
    assert (result.code, texts) == (OutcomeCode.INFRA_HARNESS, [])
    assert parts.injected() == [("tool", "exception", ROLLOUT, 1)]


async def test_a_tool_that_hangs_ends_at_the_agent_s_deadline(parts: RunParts) -> None:
    result, texts = await run_agent(parts, make_plan("tool", "hang", k=1), deadline_s=3.0)
    assert (result.code, texts) == (OutcomeCode.BUDGET_WALL, [])
    assert parts.injected() == [("tool", "hang", ROLLOUT, 1)]


async def test_an_agent_without_planned_faults_starts_normally(parts: RunParts) -> None:
    result, texts = await run_agent(parts, make_plan("tool", "error", k=2))
    assert result.code is OutcomeCode.POLICY_FINISHED
    assert "def add" in texts[0]
    assert parts.injected() == []

"""Tools that fail inside the sandbox, under the real agent program."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose
from conf.fault_table import FaultKind
from conf.sections.harness import NativeHarnessConfig
from conf.sections.sandbox import LocalSandboxConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.faults.injection import Injection
from runners.faults.plan import FaultPlan
from runners.faults.tools import FaultyHarness
from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.harnesses.native import NativeHarness
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.trajectory.outcome import OutcomeCode
from tests.fakes.running_gateway import running_gateway
from tests.fakes.scripted_engine import ScriptedEngine, spoken
from tests.runners.faults.boundaries import ROLLOUT, SESSION, Places, plan_of

pytestmark = pytest.mark.integration


def agent_settings() -> NativeHarnessConfig:
    """Return the agent's settings as they are in the YAML, with room for an answer."""
    section = compose(["harness.max_tokens=500"]).harness
    assert isinstance(section, NativeHarnessConfig)
    return section


async def worked(
    places: Places, plan: FaultPlan, isolation: str = "none", deadline_s: float = 30.0
) -> tuple[HarnessResult, list[str]]:
    """Run the native agent, which reads a file and submits; return its end and what it was told."""
    read = [{"type": "tool_use", "name": "Read", "input": {"path": "calc/add.py"}}]
    submit = [{"type": "tool_use", "name": "Submit", "input": {"message": "done"}}]
    harness = FaultyHarness(
        NativeHarness(agent_settings(), LinearScenarioConfig(kind="linear")),
        Injection(plan, places.store),
    )
    async with (
        ScriptedEngine() as engine,
        running_gateway(
            engine.url, places.tokenizer, places.tmp_path / "run", make_run=False
        ) as gateway,
    ):
        engine.say(spoken(read), spoken(submit))
        agent = await gateway.session(SESSION)
        backend = places.sandboxes if isolation == "none" else isolated(places.tmp_path)
        spec = SandboxSpec(
            SESSION, places.task.repo, "gateway", gateway.url, Path(gateway.control), agent.key,
            harness.mounts(),
        )  # fmt: skip
        sandbox = await backend.create(spec)
        try:
            context = HarnessContext("Fix it.", agent.key, "policy", deadline_s)
            result = await harness.run(sandbox, context)
        finally:
            await sandbox.close()
            if backend is not places.sandboxes:
                await backend.close()
        told = [
            message["content"]
            for turn in gateway.turns(SESSION)
            for message in turn.request["messages"]
            if message["role"] == "tool"
        ]
        return result, told


def isolated(root: Path) -> LocalBackend:
    """Return sandboxes as isolated as this machine can."""
    settings = LocalSandboxConfig(
        kind="local", isolation="auto", memory_mb=512, processes=32, file_mb=8, cpu_s=20, warm=0
    )
    return LocalBackend(settings, root / "isolated")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("error", "Error: injected"),
        ("timeout", "Error: TimeoutError"),
        ("disk_full", "Error: No space left on device"),
        ("garbage", "\ufffd\ufffd\0{not json"),
        ("delay", "def add"),
    ],
)
async def test_a_tool_that_fails_is_the_policy_s_to_read(
    places: Places, what: FaultKind, told: str
) -> None:
    result, said = await worked(places, plan_of("tool", what, k=1))
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done")
    assert [text.startswith(told) for text in said] == [True], said
    assert places.injected() == [("tool", what, ROLLOUT, 1)]


async def test_a_tool_fails_in_an_isolated_sandbox_too(places: Places) -> None:
    result, said = await worked(places, plan_of("tool", "error", k=1), isolation="auto")
    assert (result.code, said) == (OutcomeCode.POLICY_FINISHED, ["Error: injected"])


async def test_an_agent_that_a_tool_crashes_is_infrastructure(places: Places) -> None:
    result, said = await worked(places, plan_of("tool", "exception", k=1))
    assert (result.code, said) == (OutcomeCode.INFRA_HARNESS, [])
    assert places.injected() == [("tool", "exception", ROLLOUT, 1)]


async def test_a_hostile_tool_ends_the_agent_and_is_infrastructure(places: Places) -> None:
    """It crashes the agent, or says what no JSON parser takes."""
    result, said = await worked(places, plan_of("tool", "hostile", k=1))
    assert result.code in (OutcomeCode.INFRA_HARNESS, OutcomeCode.INFRA_GATEWAY)
    assert said == []
    assert places.injected() == [("tool", "hostile", ROLLOUT, 1)]


async def test_a_tool_that_hangs_meets_the_agent_s_deadline(places: Places) -> None:
    result, said = await worked(places, plan_of("tool", "hang", k=1), deadline_s=3.0)
    assert (result.code, said) == (OutcomeCode.BUDGET_WALL, [])
    assert places.injected() == [("tool", "hang", ROLLOUT, 1)]


async def test_an_agent_without_planned_faults_starts_as_ever(places: Places) -> None:
    result, said = await worked(places, plan_of("tool", "error", k=2))
    assert result.code is OutcomeCode.POLICY_FINISHED
    assert "def add" in said[0]
    assert places.injected() == []

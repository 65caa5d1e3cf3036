"""Rules between the agent program and the rest of the configuration."""

from __future__ import annotations

import pytest

from conf.compose import compose, from_json, to_json
from conf.errors import ConfigError
from conf.sections.sandbox import LocalSandboxConfig


def limits(*overrides: str) -> tuple[int, int]:
    """Return the memory and CPU limits of sandboxes."""
    sandbox = compose(list(overrides)).sandbox
    assert isinstance(sandbox, LocalSandboxConfig)
    return sandbox.memory_mb, sandbox.cpu_s


def test_a_sandbox_has_the_limits_that_its_agent_program_needs() -> None:
    assert limits() == (1024, 60)
    assert limits("harness=claude_code") == (16384, 1800)
    assert limits("harness=claude_code", "sandbox.memory_mb=20000")[0] == 20000
    assert limits("sandbox.memory_mb=512")[0] == 512, "our own agent needs little"


@pytest.mark.parametrize("kind", ["linear", "subagent", "compact", "mixed"])
def test_codex_works_in_every_scenario_that_leaves_it_room(kind: str) -> None:
    room = ["scenario.window_tokens=12000"] if kind in ("compact", "mixed") else []
    assert compose(["harness=codex", f"scenario={kind}", *room]).harness.kind == "codex"


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (["harness=codex", "sandbox.memory_mb=1024"], "raise sandbox.memory_mb"),
        (["harness=codex", "scenario=compact"], "raise scenario.window_tokens"),
        (["harness=mini_swe_agent", "sandbox.memory_mb=512"], "raise sandbox.memory_mb"),
        *(
            (["harness=mini_swe_agent", f"scenario={kind}"], "set scenario=linear")
            for kind in ("subagent", "compact", "mixed")
        ),
    ],
)
def test_a_configuration_that_a_program_cannot_work_with_is_refused(
    overrides: list[str], fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    (fault,) = caught.value.faults
    assert fix in fault


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (["sandbox.memory_mb=1024"], "raise sandbox.memory_mb"),
        (["scenario=compact"], "raise scenario.window_tokens"),
        (["scenario=mixed", "scenario.window_tokens=13999"], "raise scenario.window_tokens"),
        (["harness.version=latest"], "harness.version=latest"),
    ],
)
def test_a_configuration_that_claude_code_cannot_work_with_is_refused(
    overrides: list[str], fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["harness=claude_code", *overrides])
    (fault,) = caught.value.faults
    assert fix in fault


def test_a_stored_configuration_keeps_its_limits() -> None:
    stored = to_json(compose(["harness=claude_code", "sandbox.memory_mb=20000"]))
    assert from_json(stored, source="test") == from_json(
        stored, source="test", overrides=["seed=0"]
    )
    assert '"memory_mb": 20000' in stored

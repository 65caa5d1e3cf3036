"""How Codex is started: the whole command line and environment of each scenario."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.schema import (
    CompactScenario,
    LinearScenario,
    MixedScenario,
    Scenario,
    SubagentScenario,
)
from runners.harnesses.codex import CodexHarness
from runners.harnesses.codex.settings import command, environment
from tests.runners.harnesses.listener import Listener, started
from tests.runners.harnesses.test_codex_result import SETTINGS

GOLDEN = Path(__file__).parent / "golden"
SCENARIOS: dict[str, Scenario] = {
    "linear": LinearScenario(kind="linear"),
    "subagent": SubagentScenario(kind="subagent"),
    "compact": CompactScenario(kind="compact", window_tokens=30_000),
    "mixed": MixedScenario(kind="mixed", window_tokens=30_000),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_command_line_and_the_environment_are_as_agreed(
    name: str, request: pytest.FixtureRequest
) -> None:
    line = command(SCENARIOS[name], url="http://gateway", model="policy")
    found = {"argv": line, "env": dict(environment("KEY"))}
    file = GOLDEN / f"codex-{name}.json"
    text = json.dumps(found, indent=2) + "\n"
    if request.config.getoption("--update-golden"):
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text


async def test_neither_the_key_nor_the_task_is_in_the_command_line() -> None:
    sandbox = Listener()
    harness = CodexHarness(SETTINGS, SCENARIOS["mixed"], Path("codex"))
    await started(harness, sandbox)
    assert sandbox.argv[0] in harness.mounts()
    assert "SECRET" in sandbox.env.values()
    assert any(f"{sandbox.gateway_url}/v1" in word for word in sandbox.argv)

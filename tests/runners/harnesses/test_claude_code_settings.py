"""How Claude Code is started: the whole command line and environment of each scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from conf.schema import (
    ClaudeCodeHarness,
    CompactScenario,
    LinearScenario,
    MixedScenario,
    Scenario,
    SubagentScenario,
)
from runners.harnesses.claude_code import ClaudeCodeHarness as Harness
from runners.harnesses.claude_code.settings import command, environment
from runners.harnesses.contract import HarnessContext
from runners.sandboxes.contract import CommandResult, Sandbox

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = ClaudeCodeHarness(
    kind="claude_code",
    version="2.1.328",
    binary=None,
    max_turns=40,
    max_tokens=8192,
    memory_mb=16384,
    cpu_s=600,
)
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
    scenario = SCENARIOS[name]
    added = environment(SETTINGS, scenario, url="http://gateway", api_key="KEY", model="policy")
    found = {"argv": command(SETTINGS, scenario), "env": dict(added)}
    file = GOLDEN / f"claude_code-{name}.json"
    text = json.dumps(found, indent=2) + "\n"
    if request.config.getoption("--update-golden"):
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text


@pytest.mark.parametrize(("max_tokens", "reserved"), [(4096, 4096), (64_000, 20_000)])
def test_the_window_is_what_a_turn_may_hold_before_it_compacts(
    max_tokens: int, reserved: int
) -> None:
    settings = SETTINGS.model_copy(update={"max_tokens": max_tokens})
    added = environment(settings, SCENARIOS["compact"], url="", api_key="", model="")
    window = int(added["CLAUDE_CODE_MAX_CONTEXT_TOKENS"])
    assert window - reserved - 13_000 == 30_000
    assert "DISABLE_COMPACT" not in added


class Listener:
    """Of a sandbox, what a harness uses: it keeps what it was asked to run."""

    gateway_url = "http://127.0.0.1:8080"

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.stdin = b""

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Keep the arguments."""
        self.argv, self.env, self.stdin = argv, env or {}, stdin
        return CommandResult(0, b"", b"", 1.0)


async def test_neither_the_key_nor_the_task_is_in_the_command_line() -> None:
    sandbox = Listener()
    harness = Harness(SETTINGS, SCENARIOS["mixed"], Path("claude"))
    await harness.run(cast("Sandbox", sandbox), HarnessContext("TASK é", "SECRET", "policy", 5))
    assert not any("SECRET" in word or "TASK" in word for word in sandbox.argv)
    assert sandbox.argv[0] in harness.mounts()
    assert sandbox.env["ANTHROPIC_AUTH_TOKEN"] == "SECRET"
    assert sandbox.env["ANTHROPIC_BASE_URL"] == sandbox.gateway_url
    assert sandbox.stdin == "TASK é".encode()

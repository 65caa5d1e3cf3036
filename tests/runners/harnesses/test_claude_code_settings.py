"""How Claude Code is started: the whole command line and environment of each scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.sections.harness import ClaudeCodeHarnessConfig
from runners.harnesses import claude_code
from runners.harnesses.claude_code.settings import command, environment
from tests.runners.harnesses.golden import SCENARIOS, check_golden
from tests.runners.harnesses.listener import Listener, started

SETTINGS = ClaudeCodeHarnessConfig(
    kind="claude_code",
    version="2.1.328",
    binary=None,
    max_turns=40,
    max_tokens=8192,
    memory_mb=16384,
    cpu_s=600,
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_command_line_and_the_environment_are_as_agreed(
    name: str, request: pytest.FixtureRequest
) -> None:
    scenario = SCENARIOS[name]
    added = environment(SETTINGS, scenario, url="http://gateway", api_key="KEY", model="policy")
    check_golden(f"claude_code-{name}", command(SETTINGS, scenario), added, request)


@pytest.mark.parametrize(("max_tokens", "reserved"), [(4096, 4096), (64_000, 20_000)])
def test_the_window_is_what_a_turn_may_hold_before_it_compacts(
    max_tokens: int, reserved: int
) -> None:
    settings = SETTINGS.model_copy(update={"max_tokens": max_tokens})
    added = environment(settings, SCENARIOS["compact"], url="", api_key="", model="")
    window = int(added["CLAUDE_CODE_MAX_CONTEXT_TOKENS"])
    assert window - reserved - 13_000 == 30_000
    assert "DISABLE_COMPACT" not in added


async def test_neither_the_key_nor_the_task_is_in_the_command_line() -> None:
    sandbox = Listener()
    harness = claude_code.harness(SETTINGS, SCENARIOS["mixed"], Path("claude"))
    await started(harness, sandbox)
    assert sandbox.argv[0] in harness.mounts()
    assert sandbox.env["ANTHROPIC_AUTH_TOKEN"] == "SECRET"
    assert sandbox.env["ANTHROPIC_BASE_URL"] == sandbox.gateway_url

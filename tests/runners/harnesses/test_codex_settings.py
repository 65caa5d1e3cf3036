"""How Codex is started: the whole command line and environment of each scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.harnesses import codex
from runners.harnesses.codex.settings import command, environment
from tests.runners.harnesses.golden import SCENARIOS, check_golden
from tests.runners.harnesses.listener import Listener, started
from tests.runners.harnesses.test_codex_result import SETTINGS


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_command_line_and_the_environment_are_as_agreed(
    name: str, request: pytest.FixtureRequest
) -> None:
    line = command(SCENARIOS[name], url="http://gateway", model="policy")
    check_golden(f"codex-{name}", line, environment("KEY"), request)


async def test_neither_the_key_nor_the_task_is_in_the_command_line() -> None:
    sandbox = Listener()
    harness = codex.harness(SETTINGS, SCENARIOS["mixed"], Path("codex"))
    await started(harness, sandbox)
    assert sandbox.argv[0] in harness.mounts()
    assert "SECRET" in sandbox.env.values()
    assert any(f"{sandbox.gateway_url}/v1" in word for word in sandbox.argv)

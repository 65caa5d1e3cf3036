"""A prompt, arguments and variables of the user's own, for programs that agentrl knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from conf.compose import compose, from_json, to_json
from conf.errors import ConfigError
from runners.harnesses import claude_code, codex
from runners.harnesses.contract import HarnessContext
from runners.harnesses.external_program import ExternalProgram
from runners.harnesses.registry import make_harness
from runners.sandboxes.contract import Sandbox
from tests.runners.harnesses.recording_sandbox import RecordingSandbox

MAKERS: dict[str, Any] = {"claude_code": claude_code.make_harness, "codex": codex.make_harness}
LINES = [
    "harness.arguments=[--mcp-config, '{\"mcpServers\": {}}']",
    "harness.env={EXTRA: 'x y', ANTHROPIC_BASE_URL: 'http://elsewhere', AGENTRL_API_KEY: mine}",
]


async def start(harness: Any, prompt: str = "Fix {it}.") -> RecordingSandbox:
    sandbox = RecordingSandbox()
    await harness.run(cast("Sandbox", sandbox), HarnessContext(prompt, "SECRET", "policy", 5))
    return sandbox


@pytest.mark.parametrize("name", MAKERS)
async def test_arguments_follow_ours_and_our_variables_win(name: str) -> None:
    config = compose([f"harness={name}", *LINES])
    assert from_json(to_json(config), source="here") == config
    plain = compose([f"harness={name}"]).harness
    found: list[RecordingSandbox] = []
    for harness in (plain, config.harness):
        program: ExternalProgram = MAKERS[name](harness, config.scenario, Path("/program"))
        found.append(await start(program))
    before, after = found
    own = ["--mcp-config", '{"mcpServers": {}}']
    assert [word for word in after.argv if word not in own] == before.argv
    assert after.argv.index(own[0]) >= len(before.argv) - 1
    assert after.env == {"EXTRA": "x y", **_foreign(name), **before.env}


def _foreign(name: str) -> dict[str, str]:
    """Return the variables that only the other program sets."""
    other = {"claude_code": "AGENTRL_API_KEY", "codex": "ANTHROPIC_BASE_URL"}[name]
    return {other: {"AGENTRL_API_KEY": "mine", "ANTHROPIC_BASE_URL": "http://elsewhere"}[other]}


async def test_the_prompt_has_the_task_in_it() -> None:
    config = compose(["harness=native", "harness.prompt='Work in \\(src\\).\n{problem_statement}'"])
    sandbox = await start(make_harness(config.harness, config.scenario))
    assert sandbox.stdin.decode().endswith("\nFix {it}.")
    assert sandbox.stdin.decode().startswith("Work in ")


@pytest.mark.parametrize("name", ["native", "claude_code", "codex", "mini_swe_agent", "opencode"])
def test_a_prompt_without_the_task_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"harness.prompt=Go. does not contain"):
        compose([f"harness={name}", "harness.prompt=Go."])

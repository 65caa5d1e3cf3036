"""A prompt, arguments and variables of the user's own, for programs that agentrl knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from conf.absolute_paths import make_paths_absolute
from conf.compose import compose, from_json, to_json
from conf.errors import ConfigError
from conf.sections.harness import ClaudeCodeHarnessConfig, CodexHarnessConfig
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext
from runners.rollouts.harnesses import claude_code, codex
from runners.rollouts.harnesses.external_program import ExternalProgram
from runners.rollouts.harnesses.installation import ProgramError
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.contract import CommandResult, Sandbox
from tests.runners.rollouts.harnesses.recording_sandbox import RecordingSandbox

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


SERVERS = "harness.mcp_servers={docs: {command: serve, args: ['{directory}/x'], env: {A: 'b, c'}}}"
CRITIC = "harness.agents={critic: {description: It weighs, prompt: 'Weigh: \\(all\\).'}}"


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_what_is_added_is_stored_and_changed_by_its_dotted_keys(name: str, tmp_path: Path) -> None:
    config = compose([f"harness={name}", "scenario=subagent", SERVERS, CRITIC])
    assert from_json(to_json(config), source="here") == config
    changed = compose(
        ["harness.mcp_servers.docs.directory=here", "harness.agents.critic.prompt=Go."],
        base=json.loads(to_json(config)),
    )
    assert isinstance(changed.harness, ClaudeCodeHarnessConfig | CodexHarnessConfig)
    assert changed.harness.agents["critic"].prompt == "Go."
    server = make_paths_absolute(changed).harness.mcp_servers["docs"]  # type: ignore[union-attr]
    assert (server.directory, server.args) == (Path.cwd() / "here", ("{directory}/x",))


@pytest.mark.parametrize("name", MAKERS)
async def test_a_servers_directory_is_mounted_and_stands_in_its_command_line(
    name: str, tmp_path: Path
) -> None:
    lines = [f"harness={name}", SERVERS, f"harness.mcp_servers.docs.directory={tmp_path}"]
    config = compose(lines)
    harness: ExternalProgram = MAKERS[name](config.harness, config.scenario, Path("/program"))
    inside = "/opt/agentrl/mcp/docs"
    assert harness.mounts()[inside] == tmp_path
    argv = " ".join((await start(harness)).argv)
    assert f"{inside}/x" in argv
    assert "b, c" in argv


@pytest.mark.parametrize("name", MAKERS)
def test_a_servers_directory_that_is_missing_is_an_error_with_its_key(name: str) -> None:
    config = compose([f"harness={name}", SERVERS, "harness.mcp_servers.docs.directory=/no/where"])
    with pytest.raises(ProgramError, match=r"mcp_servers\.docs\.directory=/no/where is not a"):
        MAKERS[name](config.harness, config.scenario, Path("/program"))


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["harness=codex", "harness.tools=[Read]"], "belongs to harness=claude_code"),
        (["harness=pi", "harness.system_prompt=x"], "belongs to harness=claude_code or codex"),
        (["harness=codex", CRITIC], "choose one of them, or drop harness.agents"),
        (
            ["harness=claude_code", "scenario=subagent", "harness.tools=[Read]"],
            "drop harness.tools",
        ),
        (
            ["harness=claude_code", CRITIC.replace("critic", "dispatcher")],
            "harness.agents has dispatcher",
        ),
        (["harness=codex", "scenario=mixed", CRITIC.replace("prompt", "tools")], "critic.tools"),
        (["harness=codex", SERVERS.replace("docs", "'a.b'")], "harness.mcp_servers"),
        (["harness=claude_code", SERVERS.replace("command", "comand")], "comand"),
        (["harness=claude_code", "harness.disallowed_tools=['Read,--agent']"], "disallowed_tools"),
        (["harness=claude_code", "harness.system_prompt=' '"], "harness.system_prompt"),
    ],
)
def test_what_a_program_or_scenario_cannot_have_is_refused_by_name(
    lines: list[str], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        compose(lines)


def test_a_claude_code_without_a_server_that_it_was_to_start_is_a_failed_program() -> None:
    def end(*states: dict[str, str]) -> CommandResult:
        begun = {"type": "system", "subtype": "init", "mcp_servers": states}
        ended = {"type": "result", "subtype": "success", "result": "done"}
        return CommandResult(0, "\n".join(map(json.dumps, (begun, ended))).encode(), b"", 1.0)

    up, down = {"name": "a", "status": "connected"}, {"name": "b", "status": "failed"}
    servers = ("a", "b")
    failed = claude_code.read_result(end(up, down), servers)
    assert failed.code is OutcomeCode.INFRA_HARNESS
    assert failed.final_message == "these MCP servers did not start: b"
    assert claude_code.read_result(end(up), servers).code is OutcomeCode.INFRA_HARNESS
    well = claude_code.read_result(end(up, {**down, "status": "connected"}), servers)
    assert well.code is OutcomeCode.POLICY_FINISHED


def test_sub_agents_of_codex_that_cannot_be_written_are_an_error_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = compose(["harness=codex", "scenario=subagent", CRITIC])
    with pytest.raises(ProgramError, match=r"harness\.agents: cannot write .*XDG_CACHE_HOME"):
        codex.make_harness(config.harness, config.scenario, tmp_path)  # type: ignore[arg-type]

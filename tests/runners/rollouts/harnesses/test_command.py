"""Agent programs by their commands: the script in the sandbox, the installation, the end."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import cast

import pytest

from conf.cache import cache_root
from conf.compose import compose, from_json, to_json
from conf.errors import ConfigError
from conf.programs import command_directory
from conf.sections.harness import CommandHarnessConfig
from conf.sections.scenario import LinearScenarioConfig
from launch.preflight import find_problems
from runners.gateway.refusal import PROMPT_TOO_LONG, TURNS_SPENT
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext
from runners.rollouts.harnesses.command import CommandHarness, read_result
from runners.rollouts.harnesses.installation import ProgramError
from runners.rollouts.harnesses.registry import install_harness, make_harness
from runners.sandboxes.contract import CommandResult, Sandbox
from tests.runners.rollouts.harnesses.recording_sandbox import (
    RecordingSandbox,
    check_no_secret_in_argv,
)

RUN = 'printf "%s|" {base_url} {model} {workdir} "$KEY" "$ODD"; cat {prompt_file} -'


def config(*lines: str, run: str = RUN) -> CommandHarnessConfig:
    found = compose(["harness=command", f"harness.run='{run}'", *lines]).harness
    assert isinstance(found, CommandHarnessConfig)
    return found


class ShellSandbox(RecordingSandbox):
    """Runs the recorded command on this machine, in a home of its own."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home

    def start(self) -> subprocess.CompletedProcess[bytes]:
        env = {"PATH": os.environ["PATH"], "HOME": str(self._home), **self.env}
        argv = [
            word.replace("/tmp/agentrl-prompt.md", f"{self._home}/prompt") for word in self.argv
        ]
        return subprocess.run(argv, input=self.stdin, env=env, capture_output=True, check=False)


def start(harness: CommandHarnessConfig, home: Path) -> subprocess.CompletedProcess[bytes]:
    sandbox = ShellSandbox(home)
    context = HarnessContext("Fix {api_key} it's", "SECRET", "policy", 5)
    made = make_harness(harness, LinearScenarioConfig(kind="linear"))
    asyncio.run(made.run(cast("Sandbox", sandbox), context))
    return sandbox.start()


def test_placeholders_are_replaced_and_the_prompt_is_a_file_and_stdin(tmp_path: Path) -> None:
    done = start(config("harness.env={KEY: '{api_key}', ODD: '{base_url}/$HOME \"x\"'}"), tmp_path)
    assert done.stderr == b""
    url, model, workdir, key, odd, prompts = done.stdout.decode().split("|")
    assert (url, model, workdir, key) == ("http://127.0.0.1:8080", "policy", "/workspace", "SECRET")
    assert odd == 'http://127.0.0.1:8080/$HOME "x"'
    assert prompts == 2 * "Fix {api_key} it's", "what a task says is no placeholder"


def test_its_files_are_in_its_home_and_their_variables_gone(tmp_path: Path) -> None:
    files = (
        '[{path: .config/it/a b.json, content: \'{"key": "{api_key}"}\'}, {path: c, content: "\'"}]'
    )
    harness = config(f"harness.files={files}", run="env; exit 3")
    done = start(harness, tmp_path)
    assert done.returncode == 3
    assert (tmp_path / ".config/it/a b.json").read_text() == '{"key": "SECRET"}'
    assert (tmp_path / "c").read_text() == "'"
    assert b"AGENTRL_FILE" not in done.stdout


def test_the_prompt_may_say_more_than_the_task(tmp_path: Path) -> None:
    harness = config("harness.prompt='Be brief.\\n{problem_statement}\\nEnd.'", run="cat")
    assert start(harness, tmp_path).stdout.decode() == "Be brief.\\nFix {api_key} it's\\nEnd."


async def test_neither_key_nor_task_is_in_the_command_line() -> None:
    harness = CommandHarness(config("harness.env={KEY: '{api_key}'}"))
    await check_no_secret_in_argv(harness, RecordingSandbox())


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["harness.run='agent --key {api_key}'"], "pass it by harness.env"),
        (["harness.run='agent {baseurl}'"], "did you mean {base_url}?"),
        (["harness.run=agent", "harness.env={A: '{prompt}'}"], "has {prompt}, which stands for"),
        (["harness.run=agent", "harness.files=[{path: /etc/x, content: a}]"], "below the home"),
        (["harness.run=agent", "harness.files=[{path: ../x, content: a}]"], "below the home"),
        (["harness.run=agent", "harness.name=A b"], "harness.name"),
    ],
)
def test_what_cannot_be_meant_is_refused(lines: list[str], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["harness=command", *lines])
    assert fault in str(caught.value)


def test_shell_variables_and_json_are_no_placeholders() -> None:
    assert config(run="echo $home {a:1} {}").run == "echo $home {a:1} {}"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "opencode",
            "qwen_code",
            "gemini_cli",
            "pi",
            "continue",
            "aider",
            "openhands",
            "openai_agents",
        ),
        *("claude_agent_sdk", "cline"),
    ],
)
def test_a_program_s_own_choice_is_stored_and_read_back(name: str) -> None:
    found = compose([f"harness={name}", "harness.env.EXTRA=1x"])
    assert isinstance(found.harness, CommandHarnessConfig)
    assert found.harness.env["EXTRA"] == "1x"
    assert from_json(to_json(found), source="here") == found
    assert found.harness.run.startswith("exec "), "signals reach the program itself"


def test_it_is_installed_once_for_each_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    harness = config("harness.name=mine", "harness.install='echo made >> program'")
    with pytest.raises(ProgramError, match="mine is not at"):
        make_harness(harness, compose([]).scenario)
    wanted = compose(["harness=command", "harness.name=mine", "harness.run=agent",
                      "harness.install='echo made >> program'"])  # fmt: skip
    assert any("mine is not at" in each.message for each in find_problems(wanted, tmp_path / "r"))
    install_harness(harness)
    install_harness(harness)
    directory = command_directory(harness)
    assert directory.is_relative_to(cache_root())
    assert (directory / "program").read_text() == "made\n"
    assert make_harness(harness, compose([]).scenario).mounts() == {"/opt/agentrl/mine": directory}
    failing = config("harness.name=mine", "harness.install='echo no network >&2; exit 7'")
    with pytest.raises(ProgramError, match=r"mine could not install .*no network"):
        install_harness(failing)
    assert not command_directory(failing).exists()
    for said, shown in (("echo out of it; ", "out of it"), ("", "exit 7")):
        failing = config("harness.name=mine", f"harness.install='{said}exit 7'")
        with pytest.raises(ProgramError, match=f"exit 7: {shown}; without network"):
            install_harness(failing)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (CommandResult(0, b"", b"", 1.0), OutcomeCode.POLICY_FINISHED),
        (CommandResult(1, b"", b"", 1.0), OutcomeCode.INFRA_HARNESS),
        (CommandResult(124, b"", b"", 1.0, timed_out=True), OutcomeCode.BUDGET_WALL),
        (CommandResult(1, TURNS_SPENT.encode(), b"", 1.0), OutcomeCode.BUDGET_TURNS),
        (CommandResult(0, b"\xff", PROMPT_TOO_LONG.encode(), 1.0), OutcomeCode.BUDGET_TOKENS),
    ],
)
def test_its_end_is_its_exit_code_or_the_gateway_s_word(
    result: CommandResult, code: OutcomeCode
) -> None:
    assert read_result(result, "mine").code is code
    assert read_result(result, "mine").facts["program"] == "mine"
    assert read_result(result, "mine", "1.2").facts["version"] == "1.2"

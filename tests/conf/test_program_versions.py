"""``harness=NAME@VERSION``: the version of a program, however it is installed."""

from __future__ import annotations

import re

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.program_versions import find_installed_version
from conf.sections.harness import ClaudeCodeHarnessConfig, CommandHarnessConfig


def test_a_version_is_that_of_the_program_and_nothing_else_changes() -> None:
    chosen = compose(["harness=claude_code@2.1.210", "harness.max_turns=9"])
    assert chosen == compose(
        ["harness=claude_code", "harness.version=2.1.210", "harness.max_turns=9"]
    )
    assert isinstance(chosen.harness, ClaudeCodeHarnessConfig)
    assert chosen.harness.version == "2.1.210"


@pytest.mark.parametrize(
    ("command", "version"),
    [
        ("npm install --silent @earendil-works/pi-coding-agent@1.6.0 node@22", "1.6.0"),
        ("pip install aider-chat==0.86.2 --quiet", "0.86.2"),
        ("pip install one==1.0 two==2.0", None),
        ("npm install pi@latest", None),
        (None, None),
    ],
)
def test_the_version_of_a_program_is_that_of_its_command(
    command: str | None, version: str | None
) -> None:
    assert find_installed_version(command) == version


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("opencode", "opencode-ai@9.9.1"),
        ("continue", "@continuedev/cli@9.9.1"),
        ("pi", "@earendil-works/pi-coding-agent@9.9.1 node@22"),
        ("aider", "aider-chat==9.9.1"),
        ("openhands", "openhands==9.9.1"),
    ],
)
def test_a_program_of_commands_is_installed_in_that_version(name: str, package: str) -> None:
    harness = compose([f"harness={name}@9.9.1"]).harness
    default = compose([f"harness={name}"]).harness
    assert isinstance(harness, CommandHarnessConfig)
    assert package in str(harness.install)
    assert harness.model_copy(update={"install": None}) == default.model_copy(
        update={"install": None}
    )


@pytest.mark.parametrize(
    ("choice", "fix"),
    [
        (
            "claude_code@latest",
            "'latest' is no version; write its number, as in harness=claude_code@",
        ),
        ("pi@", "'' is no version; write its number, as in harness=pi@1.2.3"),
        ("native@1.0", "harness=native has no version to choose; drop @1.0"),
        ("claud@1.0", "harness=claud@1.0 is not a choice"),
    ],
)
def test_a_word_that_is_no_version_is_refused_with_the_form_of_one(choice: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(fix)):
        compose([f"harness={choice}"])


@pytest.mark.parametrize(
    "choice", ["native@1.0", "command@1.0", "opencode@x", "pi@1;reboot", "no@1.0"]
)
def test_a_version_of_what_has_none_is_refused(choice: str) -> None:
    with pytest.raises(ConfigError, match="harness="):
        compose([f"harness={choice}", "harness.run=x"])

"""mini-swe-agent without the program: installation, command line, and the reading of its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.programs import program_path
from conf.sections.harness import MiniSweAgentHarnessConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.gateway.refusal import TURNS_SPENT
from runners.records.outcome import OutcomeCode
from runners.rollouts.harnesses.installation import ProgramError
from runners.rollouts.harnesses.mini_swe_agent import harness as mini_swe_agent
from runners.rollouts.harnesses.mini_swe_agent.harness import (
    build_command,
    build_environment,
    build_settings,
    read_result,
)
from runners.rollouts.harnesses.mini_swe_agent.package import find_package, install_package
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.contract import CommandResult
from tests.runners.rollouts.harnesses.golden import check_golden
from tests.runners.rollouts.harnesses.recording_sandbox import (
    RecordingSandbox,
    check_no_secret_in_argv,
)

VERSION = "2.4.6"


def config(directory: Path | None = None) -> MiniSweAgentHarnessConfig:
    return MiniSweAgentHarnessConfig(
        kind="mini_swe_agent",
        version=VERSION,
        directory=directory,
        max_turns=40,
        max_tokens=8192,
        memory_mb=4096,
        cpu_s=600,
    )


def fake_install(directory: Path, version: str = VERSION) -> Path:
    """Make a directory that looks like pip's."""
    (directory / f"mini_swe_agent-{version}.dist-info").mkdir(parents=True)
    return directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and a pip that finds no package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    return tmp_path / "cache"


def test_command_line_and_environment_match_the_golden_file(
    request: pytest.FixtureRequest,
) -> None:
    chosen = build_settings(config(), url="http://gateway", model="policy", workdir="/workspace")
    check_golden(
        "mini_swe_agent", build_command("/start.py", chosen), build_environment("KEY"), request
    )


async def test_neither_the_key_nor_the_task_is_in_the_command_line(tmp_path: Path) -> None:
    sandbox = RecordingSandbox()
    harness = mini_swe_agent.make_harness(config(), tmp_path)
    await check_no_secret_in_argv(harness, sandbox)
    assert set(harness.mounts()) <= set(sandbox.argv)
    assert "SECRET" in sandbox.env.values()


def test_pips_error_is_repeated_and_nothing_is_left(cache: Path) -> None:
    with pytest.raises(ProgramError, match="No matching distribution") as caught:
        install_package(config())
    assert "pip install --target DIR --no-deps -r" in str(caught.value)
    assert "harness.directory=DIR" in str(caught.value)
    assert list((cache / "agentrl" / "programs").iterdir()) == []


def test_a_given_directory_is_used_where_it_lies(tmp_path: Path) -> None:
    given = fake_install(tmp_path / "given")
    assert install_package(config(given)) == given
    harness = make_harness(config(given), LinearScenarioConfig(kind="linear"))
    assert given in harness.mounts().values()


@pytest.mark.parametrize("held", ["2.3.0", None])
def test_a_given_directory_of_another_version_is_refused(held: str | None, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    if held:
        fake_install(given, held)
    with pytest.raises(ProgramError, match=f"holds mini-swe-agent {held or 'none'}"):
        find_package(config(given))


def test_a_run_without_it_says_what_to_do() -> None:
    with pytest.raises(ProgramError, match="agentrl check harness=mini_swe_agent"):
        make_harness(config(), LinearScenarioConfig(kind="linear"))


def test_an_installed_package_is_found_in_the_cache() -> None:
    place = fake_install(program_path(config()))
    assert install_package(config()) == place


def command_result(code: int = 0, *, timed_out: bool = False, **fields: Any) -> CommandResult:
    """Return the result of a program that printed this end."""
    end = {"submission": "", "version": VERSION, "turns": 3, "error": "", **fields}
    stdout = f"mini-swe-agent (step 1)\n{{\n7\n{json.dumps(end)}\n".encode()
    return CommandResult(code, stdout, b"warning: x", 2.0, timed_out)


TOO_LONG = "BadRequestError: litellm.BadRequestError: OpenAIException - prompt is too long: 9 > 8"
SPENT = f"PermissionDeniedError: litellm.PermissionDeniedError: - {TURNS_SPENT}: 9 of them"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("Submitted", "", OutcomeCode.POLICY_FINISHED),
        ("RepeatedFormatError", "", OutcomeCode.POLICY_FORMAT_ERROR),
        ("LimitsExceeded", "", OutcomeCode.BUDGET_TURNS),
        ("TimeExceeded", "", OutcomeCode.BUDGET_WALL),
        ("BadRequestError", TOO_LONG, OutcomeCode.BUDGET_TOKENS),
        ("BadRequestError", "BadRequestError: no", OutcomeCode.INFRA_GATEWAY),
        ("PermissionDeniedError", SPENT, OutcomeCode.BUDGET_TURNS),
        ("AuthenticationError", "AuthenticationError: key", OutcomeCode.INFRA_GATEWAY),
        ("InternalServerError", "InternalServerError: 500", OutcomeCode.INFRA_MODEL),
        ("KeyError", "KeyError: 'x'", OutcomeCode.INFRA_HARNESS),
        (7, "", OutcomeCode.INFRA_HARNESS),
    ],
)
def test_its_exit_status_decides_the_outcome(status: object, error: str, code: OutcomeCode) -> None:
    result = read_result(command_result(exit_status=status, error=error, submission="fixed"))
    assert result.code is code
    assert result.final_message == (error or "fixed")
    assert result.facts == {"program": "mini_swe_agent", "version": VERSION, "turns": 3}
    assert "warning: x" in result.output


def test_its_deadline_is_a_wall_budget() -> None:
    result = read_result(CommandResult(124, b"step 1\n", b"", 60.0, timed_out=True))
    assert result.code is OutcomeCode.BUDGET_WALL


@pytest.mark.parametrize("stdout", [b"", b"{}", b"[]", b"\xff", b'{"exit_status": "Submi'])
def test_an_end_without_a_result_is_a_harness_failure(stdout: bytes) -> None:
    result = read_result(CommandResult(1, stdout, b"\xff", 1.0))
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert "exit code 1" in result.final_message

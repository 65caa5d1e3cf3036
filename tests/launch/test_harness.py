"""Pre-flight of agent programs of other projects."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose
from conf.programs import program_path
from conf.sections.harness import ClaudeCodeHarnessConfig
from launch.local import plan_local_run
from launch.preflight import find_problems

LONG = ["model.max_context_tokens=32768", "engine.cache_tokens=65536"]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def problems(tmp_path: Path, *overrides: str) -> list[tuple[bool, str]]:
    config = compose(["harness=claude_code", *LONG, *overrides])
    found = find_problems(config, tmp_path)
    return [(p.fatal, p.message) for p in found if "harness" in p.message or "Claude" in p.message]


def test_a_missing_program_is_fatal_and_its_installation_is_named(tmp_path: Path) -> None:
    ((fatal, message),) = problems(tmp_path)
    assert fatal
    assert "`agentrl check harness=claude_code`" in message


@pytest.mark.parametrize("kind", ["codex", "mini_swe_agent"])
def test_each_program_names_its_installation(kind: str, tmp_path: Path) -> None:
    config = compose([f"harness={kind}", *LONG])
    (problem,) = [p for p in find_problems(config, tmp_path) if f"harness={kind}" in p.message]
    assert problem.fatal
    assert f"`agentrl check harness={kind}`" in problem.message


def test_an_installed_program_is_not_a_problem(tmp_path: Path) -> None:
    harness = compose(["harness=claude_code"]).harness
    assert isinstance(harness, ClaudeCodeHarnessConfig)
    program = program_path(harness)
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    assert problems(tmp_path) == []


def test_a_tarball_must_be_unpacked_first(tmp_path: Path) -> None:
    tarball = tmp_path / "claude.tgz"
    tarball.write_text("")
    ((fatal, message),) = problems(tmp_path, f"harness.binary='{tarball}'")
    assert fatal
    assert f"harness=claude_code harness.binary={tarball}" in message


def test_a_configured_program_must_be_executable(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("")
    given.chmod(0o644)
    ((fatal, message),) = problems(tmp_path, f"harness.binary='{given}'")
    assert (fatal, "chmod +x" in message) == (True, True)


def test_a_context_too_short_for_the_first_prompt_is_a_warning(tmp_path: Path) -> None:
    found = problems(tmp_path, "model.max_context_tokens=1024")
    (message,) = [message for fatal, message in found if not fatal]
    assert "model.max_context_tokens=1024" in message


def test_sandboxes_of_an_external_agent_need_more_memory_than_ours(tmp_path: Path) -> None:
    ours, theirs = (
        plan_local_run(compose([]), tmp_path),
        plan_local_run(compose(["harness=claude_code"]), tmp_path),
    )
    assert theirs.memory_mb > ours.memory_mb

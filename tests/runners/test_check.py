"""The check before a run: one turn of the agent program, as a rollout has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conf import programs
from conf.compose import compose
from conf.errors import ExitCode
from conf.schema import Config
from runners.check import DialBackError, dial_back
from runners.harnesses.registry import install_harness
from runners.outcome import OutcomeCode
from tests.fakes.scripted_engine import ScriptedEngine, spoken
from tests.fakes.tiny_tokenizer import write_tiny_tokenizer


def config_for(tmp_path: Path, *overrides: str) -> Config:
    """Return a configuration whose tokenizer is there."""
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    return compose([f"model.tokenizer='{tokenizer}'", *overrides])


async def test_one_turn_is_taken_in_the_sandbox_and_recorded(tmp_path: Path) -> None:
    found = await dial_back(config_for(tmp_path), tmp_path / "work")
    assert found.turns == 1
    assert found.result.code is OutcomeCode.POLICY_GAVE_UP, "the canned reply calls no tool"
    assert found.result.final_message == "Hello"
    assert found.prompt_tokens is not None
    assert found.prompt_tokens > 100
    assert found.guarantees["isolation"]
    assert not (tmp_path / "work" / "sandboxes").exists()


async def test_an_engine_that_runs_already_is_asked(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine:
        engine.say(spoken([{"type": "text", "text": "Sure"}]))
        config = config_for(tmp_path, "engine=sglang", f"engine.url={engine.url}")
        found = await dial_back(config, tmp_path / "work")
    assert found.result.final_message == "Sure"
    assert len(engine.seen.requests[0]["input_ids"]) == found.prompt_tokens


async def test_a_policy_that_is_not_made_yet_is_not_needed(tmp_path: Path) -> None:
    config = compose([f"model.cache_dir='{tmp_path / 'empty'}'"])
    found = await dial_back(config, tmp_path / "work")
    assert (found.turns, found.prompt_tokens) == (1, None)


async def test_a_program_that_never_calls_fails_the_check(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text('#!/bin/sh\necho "2.1.328 (Claude Code)"\necho no key >&2\n')
    program.chmod(0o755)
    config = config_for(tmp_path, "harness=claude_code", f"harness.binary='{program}'")
    with pytest.raises(DialBackError, match=r"took 0 turns and ended with infra\.harness") as error:
        await dial_back(config, tmp_path / "work")
    assert error.value.exit_code == ExitCode.PREFLIGHT
    assert "no key" in str(error.value)


@pytest.mark.agents
@pytest.mark.parametrize("kind", ["claude_code", "codex"])
async def test_the_real_programs_dial_back(kind: str, tmp_path: Path) -> None:
    config = config_for(tmp_path, f"harness={kind}")
    program = programs.place(config.harness)
    assert program is not None
    if shutil.which("npm") is None and not program.exists():
        pytest.skip("npm, which installs it, is not here")
    install_harness(config.harness)
    found = await dial_back(config, tmp_path / "work")
    assert (found.turns, found.result.code) == (1, OutcomeCode.POLICY_FINISHED)
    assert found.result.facts["version"] == getattr(config.harness, "version", None)


@pytest.mark.agents
@pytest.mark.slow
async def test_the_real_mini_swe_agent_dials_back(tmp_path: Path) -> None:
    config = config_for(tmp_path, "harness=mini_swe_agent")
    install_harness(config.harness)
    found = await dial_back(config, tmp_path / "work")
    assert found.turns == 3, "three answers without a call"
    assert found.result.code is OutcomeCode.POLICY_FORMAT_ERROR

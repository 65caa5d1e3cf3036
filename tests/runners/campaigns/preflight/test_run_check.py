"""The check before a run: the engine, and one turn of the agent program."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.testing.completions import Completion, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.errors import ExitCode
from conf.schema import Config
from runners.campaigns.preflight.run_check import AgentTurn, AgentTurnError, check_run
from runners.engines.server_check import CheckResult, EngineUnfit
from runners.records.outcome import OutcomeCode
from runners.records.tokenizer import write_tiny_tokenizer
from tests.runners.rollouts.harnesses.real_agent import install_or_skip

pytestmark = pytest.mark.integration

SGLANG = Path(__file__).parents[3] / "fakes" / "sglang_package"


def config_for(tmp_path: Path, *overrides: str) -> Config:
    """Return a configuration whose tokenizer is there."""
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    return compose(["model=tiny", f"model.tokenizer='{tokenizer}'", *overrides])


async def take_agent_turn(config: Config, work: Path) -> AgentTurn:
    """Check, and return what the turn showed."""
    _, found = await check_run(config, work, report=lambda results: None)
    return found


async def test_the_agent_takes_one_turn_in_the_sandbox(tmp_path: Path) -> None:
    found = await take_agent_turn(config_for(tmp_path), tmp_path / "work")
    assert found.turns == 1
    assert found.result.code is OutcomeCode.POLICY_GAVE_UP, "the canned reply calls no tool"
    assert found.result.final_message == "Hello"
    assert found.prompt_tokens is not None
    assert found.prompt_tokens > 100
    assert found.guarantees["isolation"]
    assert not (tmp_path / "work" / "sandboxes").exists()


async def test_a_running_engine_is_checked_and_answers_the_turn(tmp_path: Path) -> None:
    reported: list[CheckResult] = []
    async with ScriptedEngine() as engine:
        engine.long_s = 1.0
        engine.always = Completion(spoken([{"type": "text", "text": "Sure"}]))
        config = config_for(tmp_path, "engine=sglang", f"engine.url={engine.url}")
        results, found = await check_run(config, tmp_path / "work", report=reported.extend)
    assert found.result.final_message == "Sure"
    assert len(engine.seen.requests[-1]["input_ids"]) == found.prompt_tokens
    assert reported == results
    assert [result.name for result in results if not result.ok] == []
    assert "tokenizer" in [result.name for result in results]


async def test_all_failures_of_an_engine_are_reported_before_the_check_fails(
    tmp_path: Path,
) -> None:
    reported: list[CheckResult] = []
    async with ScriptedEngine() as engine:
        engine.long_s = 1.0
        engine.always = Completion("Sure<|im_end|>", weight_version="abc")
        engine.context_length = 8
        config = config_for(tmp_path, "engine=sglang", f"engine.url={engine.url}")
        with pytest.raises(EngineUnfit, match="engine: weight version: ") as error:
            await check_run(config, tmp_path / "work", report=reported.extend)
    assert error.value.exit_code == ExitCode.PREFLIGHT
    assert "engine: context length: " in str(error.value)
    assert {result.name for result in reported if not result.ok} >= {"weight version"}


async def test_a_server_of_the_run_is_started_checked_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SGLANG))
    config = config_for(tmp_path, "engine=sglang_launch", "model.path=weights")
    reported: list[CheckResult] = []
    with pytest.raises(EngineUnfit, match="/generate: HTTP 404"):  # the stand-in has none
        await check_run(config, tmp_path / "work", report=reported.extend)
    facts = {result.name: result for result in reported}
    assert facts["context length"].ok, "the server was started with the model's context"
    engine = next(result.detail for result in reported if "/generate" in result.detail)
    address = engine.partition("http://")[2].partition(" ")[0]
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(*address.split(":"))


async def test_an_agent_that_takes_no_turn_fails_the_check(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text('#!/bin/sh\necho "2.1.332 (Claude Code)"\necho no; echo key >&2\n')
    program.chmod(0o755)
    config = config_for(tmp_path, "harness=claude_code", f"harness.binary='{program}'")
    with pytest.raises(
        AgentTurnError, match=r"took 0 turns and ended with infra\.harness"
    ) as error:
        await take_agent_turn(config, tmp_path / "work")
    assert error.value.exit_code == ExitCode.PREFLIGHT
    lines = str(error.value).splitlines()
    assert len(lines) == 1, "each line is shown as an error of its own"
    assert {"no", "key"} <= set(lines[0].split())


@pytest.mark.agents
@pytest.mark.parametrize("kind", ["claude_code", "codex"])
async def test_the_real_agents_take_a_turn(kind: str, tmp_path: Path) -> None:
    config = config_for(tmp_path, f"harness={kind}")
    install_or_skip(config.harness)
    found = await take_agent_turn(config, tmp_path / "work")
    assert (found.turns, found.result.code) == (1, OutcomeCode.POLICY_FINISHED)
    assert found.result.facts["version"] == getattr(config.harness, "version", None)


@pytest.mark.agents
@pytest.mark.slow
async def test_the_real_mini_swe_agent_takes_a_turn(tmp_path: Path) -> None:
    config = config_for(tmp_path, "harness=mini_swe_agent")
    install_or_skip(config.harness)
    found = await take_agent_turn(config, tmp_path / "work")
    assert found.turns == 3, "three answers without a call"
    assert found.result.code is OutcomeCode.POLICY_FORMAT_ERROR


OLD_CLAUDE = """#!/usr/bin/env python3
import json, os, sys, urllib.request
if "--version" in sys.argv:
    sys.exit(print("2.1.332 (Claude Code)"))
messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    body = {"model": "policy", "max_tokens": 99, "messages": messages, "tools": [
        {"name": "Read", "input_schema": {"type": "object", "properties": {}}}]}
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
        {"x-api-key": os.environ["ANTHROPIC_AUTH_TOKEN"], "content-type": "application/json"})
    content = json.load(urllib.request.urlopen(request))["content"]
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    if not calls:
        break
    messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call, "content": "no such tool"} for call in calls]}]
print(json.dumps({"type": "result", "subtype": "success", "result": "Hello", "is_error": False}))
"""
"""It answers calls and never sums up."""
COMPACT = (
    *("scenario=compact", "scenario.window_tokens=20000"),
    "model.max_context_tokens=40000",
)


async def test_a_program_that_ignores_its_window_fails_the_check_of_a_scenario_with_summaries(
    tmp_path: Path,
) -> None:
    program = tmp_path / "claude"
    program.write_text(OLD_CLAUDE)
    program.chmod(0o755)
    own = "harness=claude_code", f"harness.binary='{program}'"
    linear = await take_agent_turn(config_for(tmp_path, *own), tmp_path / "linear")
    assert linear.turns == 1
    with pytest.raises(
        AgentTurnError,
        match=r"claude_code [\d.]+ did not sum up its history at scenario\.window_tokens=20000",
    ) as error:
        await take_agent_turn(config_for(tmp_path, *COMPACT, *own), tmp_path / "work")
    assert error.value.exit_code == ExitCode.PREFLIGHT


async def test_the_native_agent_sums_up_at_its_window(tmp_path: Path) -> None:
    found = await take_agent_turn(config_for(tmp_path, *COMPACT), tmp_path / "work")
    assert found.turns == 1, "the check of the summaries is a run of its own"


@pytest.mark.agents
@pytest.mark.parametrize(("version", "sums_up"), [("2.1.328", True), ("2.1.210", False)])
async def test_versions_of_claude_code_are_found_to_sum_up_or_not(
    version: str, sums_up: bool, tmp_path: Path
) -> None:
    own = "harness=claude_code", f"harness.version={version}"
    config = config_for(tmp_path, *COMPACT, *own)
    install_or_skip(config.harness)
    if sums_up:
        await take_agent_turn(config, tmp_path / "work")
    else:
        with pytest.raises(AgentTurnError, match="did not sum up its history"):
            await take_agent_turn(config, tmp_path / "work")

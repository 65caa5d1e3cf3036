"""Codex: its whole command line and environment per scenario, and the reading of its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.sections.harness import CodexHarnessConfig
from runners.gateway.refusal import TURNS_SPENT
from runners.records.outcome import OutcomeCode
from runners.rollouts.harnesses.codex import (
    build_command,
    build_environment,
    make_harness,
    read_result,
)
from runners.sandboxes.contract import CommandResult
from tests.runners.rollouts.harnesses.golden import SCENARIOS, check_golden
from tests.runners.rollouts.harnesses.recording_sandbox import (
    RecordingSandbox,
    check_no_secret_in_argv,
)

VERSION = "0.169.0"
SETTINGS = CodexHarnessConfig(
    kind="codex", version=VERSION, binary=None, max_turns=40, memory_mb=16384, cpu_s=600
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_command_line_and_environment_match_the_golden_file(
    name: str, request: pytest.FixtureRequest
) -> None:
    argv = build_command(SETTINGS, SCENARIOS[name], url="http://gateway", model="policy")
    check_golden(f"codex-{name}", argv, build_environment("KEY"), request)


async def test_neither_the_key_nor_the_task_is_in_the_command_line() -> None:
    sandbox = RecordingSandbox()
    harness = make_harness(SETTINGS, SCENARIOS["mixed"], Path("codex"))
    await check_no_secret_in_argv(harness, sandbox)
    assert sandbox.argv[0] in harness.mounts()
    assert "SECRET" in sandbox.env.values()
    assert any(f"{sandbox.gateway_url}/v1" in word for word in sandbox.argv)


# --- the end -----------------------------------------------------------------------------------

START = {"type": "thread.started", "thread_id": "t"}
RAN = {"type": "item.completed", "item": {"id": "i1", "type": "command_execution"}}
SPAWNED = {
    "type": "item.completed",
    "item": {"id": "i2", "type": "collab_tool_call", "tool": "spawn_agent"},
}
MESSAGE = {"type": "item.completed", "item": {"id": "i3", "type": "agent_message", "text": "done"}}
COMPLETED = {"type": "turn.completed", "usage": {"input_tokens": 30, "output_tokens": 7}}

TOO_LONG = "Codex ran out of room in the model's context window. Start a new thread."
SPENT = f"unexpected status 403 Forbidden: {TURNS_SPENT}: 9 of them, url: http://127.0.0.1:8080/v1"
NO_KEY = "unexpected status 401 Unauthorized: unknown API key, url: http://127.0.0.1:8080/v1"
NO_ENGINE = "stream disconnected before completion: the engine cannot answer now: HTTP 500"
NO_GATEWAY = "stream disconnected before completion: error sending request for url (http://x)"


def command_result(
    *events: dict[str, Any], code: int = 0, timed_out: bool = False
) -> CommandResult:
    """Return the result of a program that printed these events."""
    stdout = "".join(f"{json.dumps(event)}\n" for event in events).encode()
    return CommandResult(code, stdout, b"WARNING: x", 2.0, timed_out)


def failed(message: str) -> dict[str, Any]:
    """Return the last event of a failed turn."""
    return {"type": "turn.failed", "error": {"message": message}}


def retry_error(message: str) -> dict[str, Any]:
    """Return the event that it prints before a retry."""
    return {"type": "error", "message": message}


def test_a_completed_task_is_policy_finished_with_its_facts() -> None:
    result = read_result(command_result(START, SPAWNED, RAN, MESSAGE, COMPLETED), VERSION)
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done")
    assert (result.raw_finish_reason, result.exit_code) == ("turn.completed", 0)
    assert result.facts == {
        "program": "codex",
        "version": VERSION,
        "commands": 1,
        "subagents": 1,
        "input_tokens": 30,
        "output_tokens": 7,
    }


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (TOO_LONG, OutcomeCode.BUDGET_TOKENS),
        (SPENT, OutcomeCode.BUDGET_TURNS),
        (NO_KEY, OutcomeCode.INFRA_GATEWAY),
        (NO_ENGINE, OutcomeCode.INFRA_MODEL),
        (NO_GATEWAY, OutcomeCode.INFRA_GATEWAY),
        ("unexpected status 503 Service Unavailable", OutcomeCode.INFRA_MODEL),
        ("something of its own", OutcomeCode.INFRA_HARNESS),
    ],
)
def test_the_error_message_of_a_failed_turn_decides_the_outcome(
    message: str, code: OutcomeCode
) -> None:
    result = read_result(command_result(START, failed(message), code=1), VERSION)
    assert (result.code, result.final_message) == (code, message)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (RAN, OutcomeCode.BUDGET_WALL),
        (retry_error(f"Reconnecting... 1/5 ({NO_ENGINE})"), OutcomeCode.INFRA_MODEL),
        (retry_error(f"Reconnecting... 1/5 ({NO_KEY})"), OutcomeCode.INFRA_GATEWAY),
    ],
)
def test_a_deadline_spent_on_retries_is_our_failure_not_the_policys(
    last: dict[str, Any], code: OutcomeCode
) -> None:
    ended = command_result(START, retry_error(NO_KEY), last, code=124, timed_out=True)
    assert read_result(ended, VERSION).code is code


@pytest.mark.parametrize(
    "stdout", [b"", b"{}", b"[]", b"\xff", b'{"type":"turn.failed"}', b'{"type":"turn.comple']
)
def test_an_end_without_a_result_is_a_harness_failure(stdout: bytes) -> None:
    result = read_result(CommandResult(1, stdout, b"\xff", 1.0), VERSION)
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert "exit code 1" in result.final_message

"""How Codex's end is read: its own words for it, and every way of having none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conf.sections.harness import CodexHarnessConfig
from runners.gateway.refusal import TURNS_SPENT
from runners.harnesses.codex.result import read_result
from runners.sandboxes.contract import CommandResult
from runners.trajectory.outcome import OutcomeCode

VERSION = "0.169.0"
SETTINGS = CodexHarnessConfig(
    kind="codex", version=VERSION, binary=None, max_turns=40, memory_mb=16384, cpu_s=600
)

START = {"type": "thread.started", "thread_id": "t"}
RAN = {"type": "item.completed", "item": {"id": "i1", "type": "command_execution"}}
SENT = {
    "type": "item.completed",
    "item": {"id": "i2", "type": "collab_tool_call", "tool": "spawn_agent"},
}
SAID = {"type": "item.completed", "item": {"id": "i3", "type": "agent_message", "text": "done"}}
ENDED = {"type": "turn.completed", "usage": {"input_tokens": 30, "output_tokens": 7}}

TOO_LONG = "Codex ran out of room in the model's context window. Start a new thread."
SPENT = f"unexpected status 403 Forbidden: {TURNS_SPENT}: 9 of them, url: http://127.0.0.1:8080/v1"
NO_KEY = "unexpected status 401 Unauthorized: unknown API key, url: http://127.0.0.1:8080/v1"
NO_ENGINE = "stream disconnected before completion: the engine cannot answer now: HTTP 500"
NO_GATEWAY = "stream disconnected before completion: error sending request for url (http://x)"


def printed(*events: dict[str, Any], code: int = 0, timed_out: bool = False) -> CommandResult:
    """Return the end of a program that printed these events."""
    stdout = "".join(f"{json.dumps(event)}\n" for event in events).encode()
    return CommandResult(code, stdout, b"WARNING: x", 2.0, timed_out)


def failed(message: str) -> dict[str, Any]:
    """Return its last event when a turn failed."""
    return {"type": "turn.failed", "error": {"message": message}}


def complaint(message: str) -> dict[str, Any]:
    """Return what it says before it asks again."""
    return {"type": "error", "message": message}


def test_a_task_that_is_done_is_finished_and_its_facts_are_kept() -> None:
    result = read_result(printed(START, SENT, RAN, SAID, ENDED), VERSION)
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
def test_why_a_turn_failed_decides(message: str, code: OutcomeCode) -> None:
    result = read_result(printed(START, failed(message), code=1), VERSION)
    assert (result.code, result.final_message) == (code, message)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (RAN, OutcomeCode.BUDGET_WALL),
        (complaint(f"Reconnecting... 1/5 ({NO_ENGINE})"), OutcomeCode.INFRA_MODEL),
        (complaint(f"Reconnecting... 1/5 ({NO_KEY})"), OutcomeCode.INFRA_GATEWAY),
    ],
)
def test_a_deadline_is_the_policys_only_if_it_was_not_waiting_for_us(
    last: dict[str, Any], code: OutcomeCode
) -> None:
    ended = printed(START, complaint(NO_KEY), last, code=124, timed_out=True)
    assert read_result(ended, VERSION).code is code


@pytest.mark.parametrize(
    "stdout", [b"", b"{}", b"[]", b"\xff", b'{"type":"turn.failed"}', b'{"type":"turn.comple']
)
def test_an_end_without_a_result_is_the_harnesss_failure(stdout: bytes) -> None:
    result = read_result(CommandResult(1, stdout, b"\xff", 1.0), VERSION)
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert "exit code 1" in result.final_message

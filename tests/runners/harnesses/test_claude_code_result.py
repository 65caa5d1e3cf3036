"""How Claude Code's end is read: its own words for it, and every way of having none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runners.gateway.refusal import TURNS_SPENT
from runners.harnesses.claude_code.result import read_result
from runners.sandboxes.contract import CommandResult
from runners.trajectory.outcome import OutcomeCode

INIT = {"type": "system", "subtype": "init", "claude_code_version": "2.1.328", "tools": ["Bash"]}
ANSWER = {"type": "assistant", "message": {"role": "assistant", "content": []}}
RETRY = {"type": "system", "subtype": "api_retry", "attempt": 2, "error_status": 529}
BOUNDARY = {"type": "system", "subtype": "compact_boundary"}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "num_turns": 3,
    "result": "done",
    "terminal_reason": "completed",
    "subagent_stats": {"spawned": 1},
    "usage": {"input_tokens": 30, "output_tokens": 7},
}
SPENT = f"API Error: 403 {TURNS_SPENT}: 9 of them"


def printed(*events: dict[str, Any], code: int = 0, timed_out: bool = False) -> CommandResult:
    """Return the end of a program that printed these events."""
    stdout = "".join(f"{json.dumps(event)}\n" for event in events).encode()
    return CommandResult(code, stdout, b"warning: x", 2.0, timed_out)


def ended(**changes: Any) -> CommandResult:
    """Return the end of a program whose result differs by ``changes``; None takes a key away."""
    result = {name: v for name, v in {**RESULT, **changes}.items() if v is not None}
    return printed(INIT, ANSWER, result, code=int(bool(result["is_error"])))


def test_a_task_that_is_done_is_finished_and_its_facts_are_kept() -> None:
    result = read_result(printed(INIT, ANSWER, BOUNDARY, RESULT))
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done")
    assert (result.raw_finish_reason, result.exit_code) == ("completed", 0)
    assert result.facts == {
        "program": "claude_code",
        "version": "2.1.328",
        "turns": 3,
        "compactions": 1,
        "subagents": 1,
        "input_tokens": 30,
        "output_tokens": 7,
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"terminal_reason": "max_turns", "subtype": "error_max_turns"}, OutcomeCode.BUDGET_TURNS),
        ({"terminal_reason": None, "subtype": "error_max_turns"}, OutcomeCode.BUDGET_TURNS),
        ({"terminal_reason": None, "is_error": False}, OutcomeCode.POLICY_FINISHED),
        ({"terminal_reason": "prompt_too_long"}, OutcomeCode.BUDGET_TOKENS),
        ({"terminal_reason": "rapid_refill_breaker"}, OutcomeCode.BUDGET_TOKENS),
        ({"terminal_reason": "malformed_tool_use_exhausted"}, OutcomeCode.POLICY_FORMAT_ERROR),
        ({"terminal_reason": "api_error", "api_error_status": 529}, OutcomeCode.INFRA_MODEL),
        ({"terminal_reason": "api_error", "api_error_status": 401}, OutcomeCode.INFRA_GATEWAY),
        ({"terminal_reason": "api_error"}, OutcomeCode.INFRA_GATEWAY),
        (
            {"terminal_reason": "api_error", "api_error_status": 403, "result": SPENT},
            OutcomeCode.BUDGET_TURNS,
        ),
        ({"terminal_reason": "completed"}, OutcomeCode.INFRA_HARNESS),
        ({"terminal_reason": "aborted_tools"}, OutcomeCode.INFRA_HARNESS),
        ({"terminal_reason": 7}, OutcomeCode.INFRA_HARNESS),
        (
            {"terminal_reason": None, "subtype": "error_during_execution"},
            OutcomeCode.INFRA_HARNESS,
        ),
    ],
)
def test_its_own_word_for_the_end_decides(changes: dict[str, Any], code: OutcomeCode) -> None:
    result = read_result(ended(**{"is_error": True, **changes}))
    assert result.code is code


def test_what_it_says_of_an_error_is_the_message() -> None:
    errors = ended(is_error=True, result=None, errors=["Reached maximum number of turns (3)"])
    assert read_result(errors).final_message == "Reached maximum number of turns (3)"


@pytest.mark.parametrize("code", [0, 1, -9, -11])
def test_an_end_without_a_result_is_the_harnesss_failure(code: int) -> None:
    result = read_result(printed(INIT, ANSWER, code=code))
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert f"exit code {code}" in result.final_message
    assert result.output.endswith(result.final_message)
    assert "warning: x" in result.output


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (ANSWER, OutcomeCode.BUDGET_WALL),
        (RETRY, OutcomeCode.INFRA_MODEL),
        ({**RETRY, "error_status": 401}, OutcomeCode.INFRA_GATEWAY),
        ({**RETRY, "error_status": None}, OutcomeCode.INFRA_GATEWAY),
    ],
)
def test_a_deadline_is_the_policys_only_if_it_was_not_waiting_for_us(
    last: dict[str, Any], code: OutcomeCode
) -> None:
    assert read_result(printed(INIT, last, code=124, timed_out=True)).code is code


def test_a_result_that_was_cut_is_none() -> None:
    whole = printed(INIT, RESULT).stdout
    result = read_result(CommandResult(0, whole[:-20], b"", 1.0))
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert result.facts["version"] == "2.1.328"


@pytest.mark.parametrize(
    "noise", [b"", b"\n", b"null\n[1]\n7\n", b"\xff\xfe\n", b'{"type": "result"\n', b"{}\n"]
)
def test_the_result_is_found_between_what_is_no_event(noise: bytes) -> None:
    start, end = printed(INIT).stdout, printed(RESULT).stdout
    result = read_result(CommandResult(0, start + noise + end + noise.strip(b"{}\n"), b"", 1.0))
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done")


@pytest.mark.parametrize("stdout", [b"", b"{}", b"[]", b"\xff", b'{"type": "result"}'])
def test_no_output_raises(stdout: bytes) -> None:
    result = read_result(CommandResult(1, stdout, b"\xff", 1.0))
    assert result.code is OutcomeCode.INFRA_HARNESS

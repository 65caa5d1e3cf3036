"""Claude Code: its whole command line and environment per scenario, and the reading of its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.sections.harness import ClaudeCodeHarnessConfig
from runners.gateway.refusal import TURNS_SPENT
from runners.records.outcome import OutcomeCode
from runners.rollouts.harnesses.claude_code import (
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

SETTINGS = ClaudeCodeHarnessConfig(
    kind="claude_code",
    version="2.1.328",
    binary=None,
    max_turns=40,
    max_tokens=8192,
    memory_mb=16384,
    cpu_s=600,
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_command_line_and_environment_match_the_golden_file(
    name: str, request: pytest.FixtureRequest
) -> None:
    scenario = SCENARIOS[name]
    env = build_environment(SETTINGS, scenario, url="http://gateway", api_key="KEY", model="policy")
    check_golden(f"claude_code-{name}", build_command(SETTINGS, scenario), env, request)


@pytest.mark.parametrize(("max_tokens", "reserved"), [(4096, 4096), (64_000, 20_000)])
def test_the_window_is_what_a_turn_may_hold_before_it_compacts(
    max_tokens: int, reserved: int
) -> None:
    settings = SETTINGS.model_copy(update={"max_tokens": max_tokens})
    env = build_environment(settings, SCENARIOS["compact"], url="", api_key="", model="")
    window = int(env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"])
    assert window - reserved - 13_000 == 30_000
    assert "DISABLE_COMPACT" not in env


async def test_neither_the_key_nor_the_task_is_in_the_command_line() -> None:
    sandbox = RecordingSandbox()
    harness = make_harness(SETTINGS, SCENARIOS["mixed"], Path("claude"))
    await check_no_secret_in_argv(harness, sandbox)
    assert sandbox.argv[0] in harness.mounts()
    assert sandbox.env["ANTHROPIC_AUTH_TOKEN"] == "SECRET"
    assert sandbox.env["ANTHROPIC_BASE_URL"] == sandbox.gateway_url


# --- the end -----------------------------------------------------------------------------------

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


def command_result(
    *events: dict[str, Any], code: int = 0, timed_out: bool = False
) -> CommandResult:
    """Return the result of a program that printed these events."""
    stdout = "".join(f"{json.dumps(event)}\n" for event in events).encode()
    return CommandResult(code, stdout, b"warning: x", 2.0, timed_out)


def final_result(**changes: Any) -> CommandResult:
    """Return the result of a program whose last event has ``changes``; None removes a key."""
    result = {name: v for name, v in {**RESULT, **changes}.items() if v is not None}
    return command_result(INIT, ANSWER, result, code=int(bool(result["is_error"])))


def test_a_completed_task_is_policy_finished_with_its_facts() -> None:
    result = read_result(command_result(INIT, ANSWER, BOUNDARY, RESULT))
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
            {"terminal_reason": "api_error", "result": "API Error: prompt is too long: engine"},
            OutcomeCode.BUDGET_TOKENS,
        ),
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
def test_its_terminal_reason_decides_the_outcome(
    changes: dict[str, Any], code: OutcomeCode
) -> None:
    result = read_result(final_result(**{"is_error": True, **changes}))
    assert result.code is code


def test_its_error_text_is_the_final_message() -> None:
    errors = final_result(
        is_error=True, result=None, errors=["Reached maximum number of turns (3)"]
    )
    assert read_result(errors).final_message == "Reached maximum number of turns (3)"


@pytest.mark.parametrize("code", [0, 1, -9, -11])
def test_an_end_without_a_result_is_a_harness_failure(code: int) -> None:
    result = read_result(command_result(INIT, ANSWER, code=code))
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
def test_a_deadline_spent_on_retries_is_our_failure_not_the_policys(
    last: dict[str, Any], code: OutcomeCode
) -> None:
    assert read_result(command_result(INIT, last, code=124, timed_out=True)).code is code


def test_a_truncated_result_event_counts_as_missing() -> None:
    whole = command_result(INIT, RESULT).stdout
    result = read_result(CommandResult(0, whole[:-20], b"", 1.0))
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert result.facts["version"] == "2.1.328"


@pytest.mark.parametrize(
    "noise", [b"", b"\n", b"null\n[1]\n7\n", b"\xff\xfe\n", b'{"type": "result"\n', b"{}\n"]
)
def test_the_result_is_found_among_lines_that_are_no_events(noise: bytes) -> None:
    start, end = command_result(INIT).stdout, command_result(RESULT).stdout
    result = read_result(CommandResult(0, start + noise + end + noise.strip(b"{}\n"), b"", 1.0))
    assert (result.code, result.final_message) == (OutcomeCode.POLICY_FINISHED, "done")


@pytest.mark.parametrize("stdout", [b"", b"{}", b"[]", b"\xff", b'{"type": "result"}'])
def test_unreadable_output_does_not_raise(stdout: bytes) -> None:
    result = read_result(CommandResult(1, stdout, b"\xff", 1.0))
    assert result.code is OutcomeCode.INFRA_HARNESS

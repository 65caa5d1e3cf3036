"""How Claude Code ended: its last word, in ours. Whatever it printed, nothing is raised.

It prints one JSON event per line: ``system/init`` first, ``result`` last.
"""

from __future__ import annotations

from typing import Any

from runners.gateway.refusal import TURNS_SPENT
from runners.harnesses.contract import HarnessResult
from runners.harnesses.events import Event, events, tail
from runners.sandboxes.contract import CommandResult
from runners.trajectory.outcome import OutcomeCode

CODES = {
    "completed": OutcomeCode.POLICY_FINISHED,
    "malformed_tool_use_exhausted": OutcomeCode.POLICY_FORMAT_ERROR,
    "max_turns": OutcomeCode.BUDGET_TURNS,
    "prompt_too_long": OutcomeCode.BUDGET_TOKENS,
    "blocking_limit": OutcomeCode.BUDGET_TOKENS,
    "rapid_refill_breaker": OutcomeCode.BUDGET_TOKENS,  # each summary was outgrown at once
    "timeout": OutcomeCode.BUDGET_WALL,
    "model_gone": OutcomeCode.INFRA_MODEL,
    "gateway_gone": OutcomeCode.INFRA_GATEWAY,
}
"""By ``terminal_reason``, and by the last three of ours; any other is the program's failure."""
OVERLOADED = (429, 500, 502, 503, 504, 529)
"""Statuses with which the gateway says that the engine does not answer."""


def read_result(command: CommandResult) -> HarnessResult:
    """Turn the end of the program into a result."""
    said = list(events(command.stdout))
    last = said[-1] if said else {}
    ended = last if last.get("type") == "result" else {}
    if ended:
        reason, message = _reason(ended), _text(ended)
    elif command.timed_out:
        retries = last.get("subtype") == "api_retry"
        reason = _refusal(last.get("error_status")) if retries else "timeout"
        message = f"killed at its deadline after {command.duration_s:.0f} s"
    else:
        reason = None
        message = f"it ended with exit code {command.exit_code} and without a result"
    code = CODES.get(reason or "", OutcomeCode.INFRA_HARNESS)
    return HarnessResult(
        code=code,
        final_message=message,
        raw_finish_reason=_word(ended),
        exit_code=command.exit_code,
        duration_s=command.duration_s,
        output=f"{tail(command.stdout, command.stderr)}\n{message}".strip(),
        facts=_facts(said, ended),
    )


def _word(ended: Event) -> str | None:
    """Return its own word for the end; versions before 2.1.200 or so have only ``subtype``."""
    word = ended.get("terminal_reason") or ended.get("subtype")
    return word if isinstance(word, str) else None


def _reason(ended: Event) -> str | None:
    word = _word(ended)
    if word in ("api_error", "model_error"):
        if TURNS_SPENT in _text(ended):
            return "max_turns"
        return _refusal(ended.get("api_error_status"))
    if word in ("success", "completed"):
        return None if ended.get("is_error") else "completed"
    return "max_turns" if word == "error_max_turns" else word


def _refusal(status: object) -> str:
    return "model_gone" if status in OVERLOADED else "gateway_gone"


def _text(ended: Event) -> str:
    said = ended.get("result")
    if isinstance(said, str):
        return said
    errors = ended.get("errors")
    return "\n".join(map(str, errors)) if isinstance(errors, list) else ""


def _facts(said: list[Event], ended: Event) -> dict[str, Any]:
    """Return what the record keeps of what it said of itself."""
    start = next((event for event in said if event.get("subtype") == "init"), {})
    boundaries = [event for event in said if event.get("subtype") == "compact_boundary"]
    stats, usage = ended.get("subagent_stats"), ended.get("usage")
    return {
        "program": "claude_code",
        "version": start.get("claude_code_version"),
        "turns": ended.get("num_turns"),
        "compactions": len(boundaries),
        "subagents": stats.get("spawned") if isinstance(stats, dict) else None,
        "input_tokens": usage.get("input_tokens") if isinstance(usage, dict) else None,
        "output_tokens": usage.get("output_tokens") if isinstance(usage, dict) else None,
    }

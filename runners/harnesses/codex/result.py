"""How Codex ended: its last word, in ours. Whatever it printed, nothing is raised.

It prints one JSON event per line: ``thread.started`` first, ``turn.completed`` or ``turn.failed``
last. Why a turn failed is a sentence.
"""

from __future__ import annotations

import re
from typing import Any

from runners.gateway.refusal import TURNS_SPENT
from runners.harnesses.contract import HarnessResult
from runners.harnesses.events import Event, events, tail
from runners.sandboxes.contract import CommandResult
from runners.trajectory.outcome import OutcomeCode

CODES = {
    "completed": OutcomeCode.POLICY_FINISHED,
    "turns": OutcomeCode.BUDGET_TURNS,
    "context": OutcomeCode.BUDGET_TOKENS,
    "timeout": OutcomeCode.BUDGET_WALL,
    "model": OutcomeCode.INFRA_MODEL,
    "gateway": OutcomeCode.INFRA_GATEWAY,
}
"""By why it ended; anything else is the program's failure."""
SENTENCES = (
    ("turns", re.compile(re.escape(TURNS_SPENT))),
    ("context", re.compile(r"context window")),
    ("model", re.compile(r"unexpected status (429|5\d\d)|the engine (cannot answer|failed)")),
    ("gateway", re.compile(r"unexpected status \d+|error sending request|stream disconnected")),
)
"""By what the sentence holds, the first that fits; its wording is not its contract."""


def read_result(command: CommandResult, version: str) -> HarnessResult:
    """Turn the end of the program, which is of this version, into a result."""
    said = list(events(command.stdout))
    last = said[-1] if said else {}
    if last.get("type") == "turn.completed":
        reason, message = "completed", _last_words(said)
    elif command.timed_out:
        complaint = _complaint(said[-1:])
        reason = _reason(complaint) if complaint else "timeout"
        message = f"killed at its deadline after {command.duration_s:.0f} s"
    else:
        complaint = _complaint(said)
        reason = _reason(complaint)
        message = complaint or f"it ended with exit code {command.exit_code} and without a result"
    return HarnessResult(
        code=CODES.get(reason, OutcomeCode.INFRA_HARNESS),
        final_message=message,
        raw_finish_reason=last.get("type") if isinstance(last.get("type"), str) else None,
        exit_code=command.exit_code,
        duration_s=command.duration_s,
        output=f"{tail(command.stdout, command.stderr)}\n{message}".strip(),
        facts=_facts(said, version),
    )


def _complaint(said: list[Event]) -> str:
    """Return what it last complained of."""
    for event in reversed(said):
        found = event.get("error") if event.get("type") == "turn.failed" else event
        if event.get("type") in ("turn.failed", "error") and isinstance(found, dict):
            return str(found.get("message", ""))
    return ""


def _reason(complaint: str) -> str:
    return next((reason for reason, says in SENTENCES if says.search(complaint)), "")


def _items(said: list[Event], kind: str) -> list[dict[str, Any]]:
    ended = (event.get("item") for event in said if event.get("type") == "item.completed")
    return [item for item in ended if isinstance(item, dict) and item.get("type") == kind]


def _last_words(said: list[Event]) -> str:
    spoken = _items(said, "agent_message")
    return str(spoken[-1].get("text", "")) if spoken else ""


def _facts(said: list[Event], version: str) -> dict[str, Any]:
    """Return what the record keeps of what it said of itself."""
    usage: dict[str, Any] = next((e["usage"] for e in said if isinstance(e.get("usage"), dict)), {})
    sent = [i for i in _items(said, "collab_tool_call") if i.get("tool") == "spawn_agent"]
    return {
        "program": "codex",
        "version": version,
        "commands": len(_items(said, "command_execution")),
        "subagents": len(sent),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
    }

"""Sum up a session, without the tokens: last message, tool calls, usage; the counters that stay.

Invariant: it says what was on the wire between gateway and engine. The agent program, which runs
beside the policy's commands, has no part in it. ``RolloutRecord.extra["session"]`` holds
``STORED_COUNTERS``; a step's metrics hold the sums of ``SUMMED_COUNTERS``. Whoever reads a store
sees today's names only, whatever names the run was written with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from runners.records.record import BranchKind
from runners.records.text import make_printable, shorten

FINAL_MESSAGE = 1 << 18
"""Characters of a final message: more than a turn of 64k tokens has."""
TOOL_CALLS = 256
"""Tool calls that are kept, the last ones; all are counted."""
NAME, ARGUMENTS, RAW_REASON = 128, 8192, 128
"""Characters of a tool's or thread's name, of a call's arguments, of an engine's own reason."""
SUMMED_COUNTERS = (
    *("forks", "ambiguous", "retokenization_mismatches", "parser_fallbacks", "routing_missing"),
    *("engine_retries", "pushed_back", "unknown_keys", "compactions_missed"),
    *("recovered_calls", "edits", "tools_added", "forged_controls"),
    "replaced_surrogates",
)
"""Their sum over a step's rollouts (``rollout/NAME`` of its metrics) is 0 when all is well."""

STORED_COUNTERS = (
    *SUMMED_COUNTERS,
    *("branches", "breaks", "retries", "tools_changed", "ignored", "over_limit"),
    *("failed_service", "recovered_kinds", "mechanical"),
)
"""Part of a rollout's record: they cannot be computed from its stored turns, or only at a cost."""

EARLIER_NAMES = {
    "unread": "parser_fallbacks",
    "tito_mismatches": "retokenization_mismatches",
}
"""Names in stores that were written before 2026-11-22, with today's."""


class FinishReason(StrEnum):
    """The end of a turn's sampling; a closed list."""

    STOP = "stop"
    """A stop token or string: the policy ended its turn, with or without tool calls."""
    LENGTH = "length"
    """The turn's or the context's limit of tokens."""
    ABORT = "abort"
    """The engine gave up."""
    REFUSAL = "refusal"
    """The filter of an endpoint."""
    OTHER = "other"
    """Any other word of an engine; ``raw_finish_reason`` has it."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool call that parsed; whether its tool exists is the agent program's business."""

    turn: int
    """Index of its turn in the session."""
    thread: str
    """``Turn.thread``: "main", or the id of a sub-agent."""
    branch: BranchKind
    name: str
    arguments: str
    """A JSON object; more than ``ARGUMENTS`` characters are cut off and end with "…"."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Sums of tokens over all turns."""

    prompt_tokens: int = 0
    """Of whole prompts: a history counts in every turn that sends it."""
    cached_tokens: int = 0
    """Those of them that the engine had in its cache, as it reported them."""
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TurnReply:
    """The part of a stored turn that a summary needs."""

    turn: int
    """``Turn.index``."""
    thread: str
    branch: BranchKind
    finish_reason: str
    malformed_calls: int
    sampled_tokens: int
    reply: Mapping[str, Any]
    """``Turn.reply``."""
    usage: Mapping[str, int]
    """``Turn.usage``."""


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """One turn in numbers."""

    branch: BranchKind
    sampled_tokens: int
    malformed: bool
    """It has a tool call that did not parse."""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session in short. Texts are printable (``make_printable``) and bounded."""

    turns: int = 0
    """Model calls, of all threads and branches."""
    usage: TokenUsage = TokenUsage()
    final_message: str = ""
    """Text of the last turn of the main branch, as the policy wrote it, without its thinking; "" if
    that turn only calls tools, or there is none.
    """
    finish_reason: FinishReason | None = None
    """End of that turn; None: there is none."""
    raw_finish_reason: str | None = None
    """The engine's own word for it."""
    tool_calls: tuple[CalledTool, ...] = ()
    """The last ``TOOL_CALLS`` of all threads, in the order of their turns."""
    tool_calls_total: int = 0
    tool_turns: int = 0
    """Turns with at least one tool call that parsed. It is counted here and nowhere else."""
    malformed_turns: int = 0
    """Turns with at least one tool call that did not parse."""
    ends_malformed: bool = False
    """True if the last turn is one of them."""
    by_turn: tuple[TurnUsage, ...] = ()
    """Every turn, by its index in the session."""


def summarize_session(replies: Iterable[TurnReply]) -> SessionSummary:
    """Return the summary of a session's turns, which come in order of their index."""
    known = list(replies)
    calls = [(each, _read_calls(each.reply)) for each in known]
    total = sum(len(found) for _, found in calls)
    flat = [(each, call) for each, found in calls for call in found]
    last = next((each for each in reversed(known) if each.branch == "main"), None)
    return SessionSummary(
        turns=len(known),
        usage=_add_usage(known),
        final_message=_read_text(last.reply) if last else "",
        finish_reason=_close_reason(last.finish_reason) if last else None,
        raw_finish_reason=_bound(last.finish_reason, RAW_REASON) if last else None,
        tool_calls=tuple(_make_call(each, call) for each, call in flat[-TOOL_CALLS:]),
        tool_calls_total=total,
        tool_turns=sum(bool(found) for _, found in calls),
        malformed_turns=sum(each.malformed_calls > 0 for each in known),
        ends_malformed=bool(known) and known[-1].malformed_calls > 0,
        by_turn=tuple(
            TurnUsage(each.branch, each.sampled_tokens, each.malformed_calls > 0) for each in known
        ),
    )


def _add_usage(replies: list[TurnReply]) -> TokenUsage:
    return TokenUsage(
        prompt_tokens=sum(each.usage.get("prompt_tokens", 0) for each in replies),
        cached_tokens=sum(each.usage.get("cached_tokens", 0) for each in replies),
        sampled_tokens=sum(each.sampled_tokens for each in replies),
    )


def _read_text(reply: Mapping[str, Any]) -> str:
    return _bound(reply.get("content") or "", FINAL_MESSAGE)


def _read_calls(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in reply.get("tool_calls") or ()]


def _make_call(turn: TurnReply, call: Mapping[str, Any]) -> CalledTool:
    arguments = orjson.dumps(call["arguments"]).decode()
    return CalledTool(
        turn=turn.turn,
        thread=_bound(turn.thread, NAME),
        branch=turn.branch,
        name=_bound(call["name"], NAME),
        arguments=_bound(arguments, ARGUMENTS),
    )


def _close_reason(raw: str) -> FinishReason:
    try:
        return FinishReason(raw)
    except ValueError:
        return FinishReason.OTHER


def _bound(text: str, limit: int) -> str:
    return make_printable(shorten(text, limit))


def rename_counters(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a stored mapping with today's names of counters; ``prefix`` precedes each.

    >>> rename_counters({"rollout/unread": 2, "train/loss": 0.1}, "rollout/")
    {'rollout/parser_fallbacks': 2, 'train/loss': 0.1}
    """
    today = {prefix + before: prefix + now for before, now in EARLIER_NAMES.items()}
    return {today.get(name, name): value for name, value in record.items()}


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None of nothing."""
    return sum(values) / len(values) if values else None

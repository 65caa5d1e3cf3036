"""Recognition of requests by their text, for agent programs that send no attribution headers.

Compactions are recognised by the fixed texts of Claude Code and Codex, side requests by their
shape, dispatched tasks by the arguments of the calls that start sub-agents.
"""

from __future__ import annotations

from collections.abc import Sequence

from runners.gateway.conversation import SYSTEM_PROMPT, IssuedCall, Piece, TurnRequest

COMPACTION_PROMPTS = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
)
"""Beginnings of the text that asks for a summary: Claude Code, Codex."""
COMPACTION_SUMMARIES = (
    "This session is being continued from a previous conversation that ran out of context",
    "Another language model started to solve this problem and produced a summary",
)
"""Beginnings of the first user message after it."""
SUBAGENT_TOOLS = ("Agent", "Task")
"""Tools that start a sub-agent."""


def asks_for_summary(request: TurnRequest) -> bool:
    """Return whether the last user message asks the policy to sum up its history."""
    return _starts_with(request, -1, COMPACTION_PROMPTS)


def begins_with_summary(request: TurnRequest) -> bool:
    """Return whether the first user message is the summary of an earlier history."""
    return _starts_with(request, 0, COMPACTION_SUMMARIES)


def is_probe(request: TurnRequest) -> bool:
    """Return whether a request is one of a program's own: titles and topics want JSON of a schema,
    quota probes want one token.
    """
    return request.structured or request.max_tokens == 1


def starts_subagent(call: IssuedCall) -> bool:
    """Return whether a call starts a sub-agent with a task in words."""
    return call.name in SUBAGENT_TOOLS and any(
        isinstance(value, str) for value in call.arguments.values()
    )


def task_of(call: IssuedCall) -> str:
    """Return the task of a call that starts a sub-agent: the longest text among its arguments."""
    return max((text for text in call.arguments.values() if isinstance(text, str)), key=len)


def digest_system_prompt(pieces: Sequence[Piece]) -> bytes | None:
    """Return the digest of a request's system prompt, None if it has none."""
    first = pieces[0]
    return first.digest() if first.message == SYSTEM_PROMPT else None


def _starts_with(request: TurnRequest, index: int, markers: tuple[str, ...]) -> bool:
    """Return whether a text of the first (0) or last (-1) user message begins with a marker."""
    users = [piece for piece in request.pieces if piece.role == "user"]
    return any(
        piece.kind == "text" and piece.text.lstrip().startswith(markers)
        for piece in users
        if piece.message == users[index].message
    )

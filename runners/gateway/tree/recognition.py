"""Recognition of requests by their text, for agent programs that send no attribution headers.

Compactions and side requests are recognised by what the program itself writes: the beginning of a
system prompt, or of the message that asks for a summary. A policy chooses the arguments of its
calls, the results of its commands and its summaries; none of them makes a request another kind.
"""

from __future__ import annotations

import re
from itertools import groupby

from runners.gateway.conversation import SYSTEM_PROMPT, TurnRequest

COMPACTION_PROMPTS = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
)
"""Beginnings of the user's text that asks for a summary: Claude Code, Codex."""
COMPACTION_SYSTEM_PROMPTS = (
    "You are a context summarization agent.",
    "You are a helpful AI assistant tasked with summarizing conversations.",
    "You are the component that summarizes internal chat history",
    "You are a specialized system component responsible for distilling chat history",
    "*Briefly* summarize this partial conversation about programming.",
)
"""Beginnings of system prompts under which a program has a history summed up: opencode, its earlier
versions and Claude Code's, qwen-code and earlier gemini-cli, gemini-cli, aider.
"""
COMPACTION_SUMMARIES = (
    "This session is being continued from a previous conversation that ran out of context",
    "Another language model started to solve this problem and produced a summary",
)
"""Beginnings of the first user message after it."""

SIDE_SYSTEM_PROMPT = re.compile(
    r"\b(?:generat|creat|writ|produc|com(?:e|ing) up with|output)[^\n]{0,80}"
    r"\b(?:titles?|commit messages?)\b",
    re.IGNORECASE,
)
"""The words under which programs ask for the title of a conversation, or the message of a commit.
"""
SIDE_PROMPT_CHARS = 300
"""Characters of a system prompt in which they stand: a main agent's instructions name commit
messages much later.
"""


def asks_for_summary(request: TurnRequest) -> bool:
    """Return whether the last user message asks the policy to sum up its history.

    Only of programs that offer tools: one without shows the output of commands as messages of the
    user, in which a policy could write these words.
    """
    return _starts_with(request, -1, COMPACTION_PROMPTS)


def sums_up(request: TurnRequest) -> bool:
    """Return whether the system prompt is that of a program's summaries."""
    return _system_prompt(request).startswith(COMPACTION_SYSTEM_PROMPTS)


def begins_with_summary(request: TurnRequest) -> bool:
    """Return whether the first user message is the summary of an earlier history."""
    return _starts_with(request, 0, COMPACTION_SUMMARIES)


def is_aside(request: TurnRequest) -> bool:
    """Return whether a request that begins a conversation is one of a program's own: a title or a
    commit message.
    """
    beginning = _system_prompt(request)[:SIDE_PROMPT_CHARS]
    return not request.tools and SIDE_SYSTEM_PROMPT.search(beginning) is not None


def _system_prompt(request: TurnRequest) -> str:
    first = request.pieces[0]
    return first.text.lstrip() if first.message == SYSTEM_PROMPT else ""


def _starts_with(request: TurnRequest, index: int, markers: tuple[str, ...]) -> bool:
    """Return whether a text of the first (0) or last (-1) user message begins with a marker."""
    pieces = request.pieces if index == 0 else reversed(request.pieces)
    users = (piece for piece in pieces if piece.role == "user")
    _, message = next(groupby(users, key=lambda piece: piece.message), (None, ()))
    return any(
        piece.kind == "text" and piece.text.lstrip().startswith(markers) for piece in message
    )

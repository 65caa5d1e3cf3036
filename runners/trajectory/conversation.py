"""The conversation of a session, rebuilt from its stored turns, as renderers take it.

A turn keeps what was new in its request, and its reply; so the conversation is their concatenation.
Where a chain broke, the client sent its history again: what merely repeats is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runners.trajectory.record import Turn

Message = dict[str, Any]


def messages(turns: Sequence[Turn]) -> list[Message]:
    """Return the messages of ``turns``: system, user, assistant and tool."""
    conversation: list[Message] = []
    for turn in turns:
        sent = turn.request.get("messages", [])
        repeated = _common(conversation, sent) if turn.prompt_kept == 0 else 0
        conversation += sent[repeated:]
        conversation.append(_reply(turn.response.get("content", [])))
    return conversation


def tools(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the tools that the policy was offered, those offered last if they changed."""
    offers = [turn.request["tools"] for turn in turns if "tools" in turn.request]
    return list(offers[-1]) if offers else []


def _common(conversation: list[Message], sent: list[Message]) -> int:
    same = 0
    while same < min(len(sent), len(conversation)) and sent[same] == conversation[same]:
        same += 1
    return same


def _reply(blocks: list[dict[str, Any]]) -> Message:
    """Return an Anthropic reply as a chat message."""
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    calls = [
        {
            "type": "function",
            "id": block["id"],
            "function": {"name": block["name"], "arguments": block["input"]},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message

"""The conversation of a session, rebuilt from its stored turns.

A turn keeps what was new in its request, and its reply; so the conversation is their concatenation.
"""

from __future__ import annotations

from typing import Any

from runners.trajectory.record import Turn

Message = dict[str, Any]


def messages(turns: list[Turn]) -> list[Message]:
    """Return the messages of ``turns`` in Anthropic's form, the system prompt first."""
    conversation: list[Message] = []
    for turn in turns:
        if turn.index == 0 and turn.request.get("system"):
            conversation.append({"role": "system", "content": turn.request["system"]})
        new = list(turn.request.get("messages", []))
        if turn.index and new and new[0].get("role") == "assistant":
            new = new[1:]  # the client's echo of the reply before
        conversation += new
        conversation.append({"role": "assistant", "content": turn.response.get("content", [])})
    return conversation


def tools(turns: list[Turn]) -> list[dict[str, Any]]:
    """Return the tools that the policy was offered."""
    return list(turns[0].request.get("tools") or []) if turns else []

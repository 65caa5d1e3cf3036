"""The conversation along a path of turns, in the form that renderers take.

A turn stores only the messages that its request added to its parent's history, and its reply; so
the conversation of a path is their concatenation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runners.records.record import Turn

Message = dict[str, Any]


def join_messages(path: Iterable[Turn]) -> list[Message]:
    """Return the messages of a path, root first; roles: system, user, assistant, tool."""
    return [message for turn in path for message in (*turn.request.get("messages", []), turn.reply)]


def latest_tools(path: Iterable[Turn]) -> list[dict[str, Any]]:
    """Return the tools that the policy was offered, as of the last turn that changed them."""
    offers = [turn.request["tools"] for turn in path if "tools" in turn.request]
    return list(offers[-1]) if offers else []

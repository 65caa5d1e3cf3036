"""Prepare a conversation for an endpoint: the order of tool results, ids that every API takes.

A request is built anew of these parts, so nothing that a client's request says besides its texts,
calls and functions reaches the endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import groupby
from typing import Any

Message = dict[str, Any]

_PORTABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""OpenAI takes ids of up to 40 characters, Anthropic these characters."""


def order_results(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages with tool results directly behind the assistant message that they answer.

    Both APIs demand it; between requests, agent programs put texts before results.
    """
    for is_assistant, group in groupby(messages, lambda each: each["role"] == "assistant"):
        if is_assistant:
            yield from group
        else:
            yield from sorted(group, key=lambda each: each["role"] != "tool")


def to_portable_id(call_id: str) -> str:
    """Return the id of a tool call as every API takes it; the same for its result."""
    if _PORTABLE_ID.fullmatch(call_id):
        return call_id
    return f"call_{blake2b(call_id.encode('utf-8', 'replace'), digest_size=12).hexdigest()}"

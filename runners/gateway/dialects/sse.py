r"""Server-sent events (WHATWG HTML, section 9.2): one frame each.

An empty line ends a frame, so no data may hold a line break. JSON as orjson writes it never does: a
line break inside a string is the two characters ``\n``.
"""

from __future__ import annotations

from typing import Any

import orjson

COMMENT_PING = b": ping\n\n"
"""A comment: clients read it, reset their timeouts, and hand nothing on."""


def frame_event(data: dict[str, Any]) -> bytes:
    """Return a frame whose event is named by the data's ``type``, as Anthropic and Responses do."""
    return b"event: %b\n%b" % (data["type"].encode(), frame_data(data))


def frame_data(data: dict[str, Any]) -> bytes:
    """Return a frame without an event name, as Chat Completions does."""
    return b"data: %b\n\n" % orjson.dumps(data)

"""Server-sent events: one frame each, whatever its data holds."""

from __future__ import annotations

from typing import Any

import orjson

COMMENT_PING = b": ping\n\n"
"""What a client reads and forgets."""


def frame_event(data: dict[str, Any]) -> bytes:
    """Frame an event that is named by its data's ``type``."""
    return b"event: %b\n%b" % (data["type"].encode(), frame_data(data))


def frame_data(data: dict[str, Any]) -> bytes:
    """Frame an event without a name."""
    return b"data: %b\n\n" % orjson.dumps(data)

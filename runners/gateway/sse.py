"""Server-sent events of an Anthropic message stream.

Order: ``message_start`` first and at once, pings while the engine works, then the blocks,
``message_delta``, ``message_stop``; or an ``error`` event instead of what is missing. The content
is framed only when the turn is durable.
"""

from __future__ import annotations

from typing import Any

import orjson


def event(name: str, data: dict[str, Any]) -> bytes:
    """Frame one event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


PING = event("ping", {"type": "ping"})


def start(message: dict[str, Any]) -> bytes:
    """Frame the opening message, empty as yet."""
    return event("message_start", {"type": "message_start", "message": message})


def error(body: dict[str, Any]) -> bytes:
    """Frame an error envelope; it ends the stream."""
    return event("error", body)


def rest(message: dict[str, Any]) -> bytes:
    """Frame everything after ``message_start``."""
    frames: list[bytes] = []
    for index, block in enumerate(message["content"]):
        empty, deltas = _taken_apart(block)
        frames.append(
            event(
                "content_block_start",
                {"type": "content_block_start", "index": index, "content_block": empty},
            )
        )
        frames += [
            event(
                "content_block_delta",
                {"type": "content_block_delta", "index": index, "delta": delta},
            )
            for delta in deltas
        ]
        frames.append(event("content_block_stop", {"type": "content_block_stop", "index": index}))
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    frames.append(
        event("message_delta", {"type": "message_delta", "delta": delta, "usage": message["usage"]})
    )
    frames.append(event("message_stop", {"type": "message_stop"}))
    return b"".join(frames)


def _taken_apart(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block without its content, and the deltas that fill it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case _:
            partial = orjson.dumps(block["input"]).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": partial}]

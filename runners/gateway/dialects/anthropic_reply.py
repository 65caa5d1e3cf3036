"""Anthropic Messages: answers, as one body or as a stream.

Order of a stream: ``message_start`` at once, pings while the engine works, then the content blocks,
``message_delta``, ``message_stop``; or an ``error`` event in place of the missing events. The
content is framed only when the turn is durable.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from runners.gateway.conversation import Answer, IssuedCall, TurnRequest
from runners.gateway.dialects.sse import frame_event
from runners.gateway.refusal import Refused

NAME = "anthropic"
CALL_ID_PREFIX = "toolu_"
PING = frame_event({"type": "ping"})


def new_message_id() -> str:
    """Issue the id of an answer."""
    return f"msg_{secrets.token_hex(12)}"


def build_response(answer: Answer, request: TurnRequest, message_id: str) -> dict[str, Any]:
    """Return the Message body that answers a request."""
    content: list[dict[str, Any]] = []
    if answer.thinking and request.show_thinking:
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": ""})
    if answer.text or not answer.calls:
        content.append({"type": "text", "text": answer.text})
    content.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in answer.calls
    )
    return {
        **_head(request, message_id),
        "content": content,
        "stop_reason": answer.stop_reason,
        "stop_sequence": answer.stop_sequence,
        "usage": _usage(answer.usage),
    }


def sent_calls(answer: Answer) -> Sequence[IssuedCall]:
    """See ``ResponseBuilder.sent_calls``."""
    return answer.calls


def _head(request: TurnRequest, message_id: str) -> dict[str, str]:
    return {"id": message_id, "type": "message", "role": "assistant", "model": request.model}


def _usage(usage: Mapping[str, int]) -> dict[str, int]:
    """Return the usage as Anthropic counts it: ``input_tokens`` are those that the cache did not
    hold, and there is at least one.
    """
    cached = max(0, min(usage["cached_tokens"], usage["prompt_tokens"] - 1))
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def error_body(refused: Refused) -> dict[str, Any]:
    """Return the error envelope."""
    error: dict[str, Any] = {"type": refused.kind.value, "message": str(refused)}
    if refused.param == "thread":  # on these words its client sends whole conversations instead
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": error}


def open_stream(request: TurnRequest, message_id: str, prompt_tokens: int) -> bytes:
    """Frame ``message_start``: the message without its content."""
    message: dict[str, Any] = {
        **_head(request, message_id),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(
            {"prompt_tokens": prompt_tokens, "cached_tokens": 0, "completion_tokens": 0}
        ),
    }
    return frame_event({"type": "message_start", "message": message})


def fail_stream(refused: Refused, request: TurnRequest, message_id: str) -> bytes:
    """Frame the error envelope as an ``error`` event."""
    return frame_event(error_body(refused))


def complete_stream(body: dict[str, Any]) -> bytes:
    """Frame everything after ``message_start``."""
    events: list[dict[str, Any]] = []
    for index, block in enumerate(body["content"]):
        empty, deltas = _split_block(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
    events.append({"type": "message_delta", "delta": delta, "usage": body["usage"]})
    events.append({"type": "message_stop"})
    return b"".join(map(frame_event, events))


def _split_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block without its content, and the deltas that bring the content."""
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

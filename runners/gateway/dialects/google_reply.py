"""Google's Gemini API: answers, as one body or as a stream.

A stream is blanks while the engine works, then one event with the whole body when the turn is
durable; or the error envelope, as no event, in its place. Google's clients in JavaScript read
neither comments nor events with a line separator of Unicode.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import orjson

from runners.gateway.conversation import Answer, IssuedCall, TurnRequest
from runners.gateway.dialects.sse import frame_data
from runners.gateway.refusal import RefusalKind, Refused

NAME = "google"
CALL_ID_PREFIX = "call_"
PING = b"\n\n"

_SEPARATORS = {each.encode(): b"\\u%04x" % ord(each) for each in "\u2028\u2029"}
"""Characters that end a line in JavaScript's regular expressions, as JSON's escapes."""

STATUS: dict[RefusalKind, tuple[int, str]] = {
    RefusalKind.INVALID: (400, "INVALID_ARGUMENT"),
    RefusalKind.UNAUTHENTICATED: (401, "UNAUTHENTICATED"),
    RefusalKind.FORBIDDEN: (403, "PERMISSION_DENIED"),
    RefusalKind.UNKNOWN: (404, "NOT_FOUND"),
    RefusalKind.CONFLICT: (409, "ABORTED"),
    RefusalKind.TOO_LARGE: (413, "INVALID_ARGUMENT"),
    RefusalKind.RATE_LIMITED: (429, "RESOURCE_EXHAUSTED"),
    RefusalKind.BROKEN: (500, "INTERNAL"),
    RefusalKind.OVERLOADED: (503, "UNAVAILABLE"),
}
"""HTTP status and its name in Google's errors."""


def new_message_id() -> str:
    """Issue the id of an answer."""
    return secrets.token_urlsafe(16)


def build_response(answer: Answer, request: TurnRequest, message_id: str) -> dict[str, Any]:
    """Return the body that answers a request."""
    parts: list[dict[str, Any]] = []
    if answer.thinking and request.show_thinking:
        parts.append({"text": answer.thinking, "thought": True})
    if answer.text or not answer.calls:
        parts.append({"text": answer.text})
    parts.extend(
        {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
        for call in answer.calls
    )
    usage = answer.usage
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": parts},
                "finishReason": "MAX_TOKENS" if answer.stop_reason == "max_tokens" else "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": usage["prompt_tokens"],
            "candidatesTokenCount": usage["completion_tokens"],
            "totalTokenCount": usage["prompt_tokens"] + usage["completion_tokens"],
            "cachedContentTokenCount": usage["cached_tokens"],
        },
        "modelVersion": request.model,
        "responseId": message_id,
    }


def sent_calls(answer: Answer) -> Sequence[IssuedCall]:
    """See ``ResponseBuilder.sent_calls``."""
    return answer.calls


def open_stream(request: TurnRequest, message_id: str, prompt_tokens: int) -> bytes:
    """Frame nothing: the API has no event for what is known before."""
    return PING


def complete_stream(body: dict[str, Any]) -> bytes:
    """Frame the body."""
    frame = frame_data(body)
    for separator, escape in _SEPARATORS.items():
        frame = frame.replace(separator, escape)
    return frame


def fail_stream(refused: Refused, request: TurnRequest, message_id: str) -> bytes:
    """Return the error envelope, in which the API's clients look for a failure."""
    return orjson.dumps(error_body(refused))


def error_body(refused: Refused) -> dict[str, Any]:
    """Return the error envelope."""
    code, status = STATUS[refused.kind]
    return {"error": {"code": code, "message": str(refused), "status": status}}

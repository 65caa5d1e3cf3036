"""What OpenAI's two dialects have in common."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import from_json

from runners.gateway.conversation import SYSTEM_PROMPT, Piece
from runners.gateway.dialects.body import WireModel
from runners.gateway.refusal import STATUS, RefusalKind, Refused

NO_LIMIT = 2**31 - 1
"""Tokens of an answer when the client sets no limit: the campaign's limit decides."""

MODEL_CREATED = 1767225600
"""2026-01-01: clients want a date; a policy in training has none."""

OVERLOADED_STATUS = 503
"""OpenAI's, where Anthropic's API says 529. Its clients ask again after every 5xx."""

_TAIL = 32


def new_id(prefix: str) -> str:
    """Issue the id of an answer. It begins with the time, so that all that is said of an answer
    dates it the same, also when it is said again.
    """
    return f"{prefix}{int(time.time()):08x}{secrets.token_hex(12)}"


def created_at(message_id: str) -> int:
    """Return when an id was issued, in seconds since the epoch."""
    return int(message_id[-_TAIL : 8 - _TAIL], 16)


def new_call_id() -> str:
    """Issue the id of a tool call."""
    return f"call_{secrets.token_hex(12)}"


def to_function_tool(
    name: str, description: str | None, parameters: dict[str, Any] | None
) -> dict[str, Any]:
    """Return a tool as renderers take it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description or "",
            "parameters": parameters or {"type": "object", "properties": {}},
        },
    }


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call that came back; what is no JSON object stands in one."""
    try:
        found = from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"arguments": text}


def write_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as the dialects send them: a string of JSON."""
    return json.dumps(arguments, ensure_ascii=False)


def merge_system_prompt(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Make one system prompt of the system texts that open a conversation."""
    rest = list(pieces)
    opening = [piece.text for piece in takewhile(lambda piece: piece.role == "system", rest)]
    prompt = "\n".join(text for text in opening if text)
    if prompt:
        yield Piece(SYSTEM_PROMPT, "system", "text", prompt)
    yield from rest[len(opening) :]


class Refusal(WireModel):
    """What a model would not say, in a conversation that comes back."""

    type: Literal["refusal"]
    refusal: str


def ignored_settings(body: BaseModel, names: Iterable[str]) -> Iterator[str]:
    """Return which of the sampling settings ``names``, and of those common to both dialects, a
    client asked for in vain.
    """
    for name in names:
        wished = getattr(body, name)
        if wished is not None and wished is not False:  # 0 is a wish
            yield name
    if getattr(body, "tool_choice", None) not in (None, "auto"):
        yield "tool_choice"
    if getattr(body, "parallel_tool_calls", None) is False:
        yield "parallel_tool_calls"


def refusal(refused: Refused) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and error envelope."""
    status = OVERLOADED_STATUS if refused.why is RefusalKind.OVERLOADED else STATUS[refused.why]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = "server_error" if status >= 500 else None
    if refused.is_too_long:
        code = "context_length_exceeded"
    elif refused.why is RefusalKind.UNAUTHENTICATED:
        code = "invalid_api_key"
    error = {"message": str(refused), "type": kind, "param": refused.param, "code": code}
    return status, {"error": error}


def model(name: str) -> dict[str, Any]:
    """Describe a model."""
    return {"id": name, "object": "model", "created": MODEL_CREATED, "owned_by": "agentrl"}


def models(*names: str) -> dict[str, Any]:
    """List the models."""
    return {"object": "list", "data": [model(name) for name in names]}

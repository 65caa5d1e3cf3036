"""The common part of OpenAI's two dialects: ids, tools, arguments, errors, models."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Literal

from pydantic_core import from_json

from runners.gateway.conversation import SYSTEM_PROMPT, Piece
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.body import Name, RequestBody, Typed, WireModel, omission_text
from runners.gateway.dialects.json_text import mend_unicode
from runners.gateway.refusal import STATUS, RefusalKind, Refused

NO_LIMIT = 2**31 - 1
"""``max_tokens`` of a request without a limit: the campaign's limit decides."""

MODEL_CREATED = 1767225600
"""2026-01-01. Clients expect a date; a policy in training has none."""

OVERLOADED_STATUS = 503
"""OpenAI's, where Anthropic's API has 529. Its clients retry after every 5xx."""

CALL_ID_PREFIX = "call_"

_TAIL = 32
"""Characters of an id after its prefix: 8 of time, 24 of chance, all hexadecimal."""


def new_id(prefix: str) -> str:
    """Issue the id of an answer. It begins with the time, so that the chunks of a stream and the
    answer to a retry all give the same date.
    """
    return f"{prefix}{int(time.time()):08x}{secrets.token_hex(12)}"


def created_at(message_id: str) -> int:
    """Return the time at which an id was issued, in seconds since the epoch."""
    return int(message_id[-_TAIL : 8 - _TAIL], 16)


def to_function_tool(
    name: str, description: str | None, parameters: dict[str, Any] | None
) -> dict[str, Any]:
    """Return a tool in the form that renderers take."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description or "",
            "parameters": parameters or {"type": "object", "properties": {}},
        },
    }


def arguments_as_text(arguments: object) -> object:
    """Return the arguments of a call as JSON, also where a client sends an object, or none."""
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    return "" if arguments is None else arguments


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call that came back; text that is no JSON object is put in one.

    It is JSON within the body's, so halves of characters are escaped twice in there.
    """
    try:
        found = from_json(mend_unicode(text.strip().encode())[0] or b"{}", allow_inf_nan=False)
    except ValueError:
        found = text
    if found is None:
        return {}
    return found if isinstance(found, dict) else {"arguments": text}


def write_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as both dialects send them: JSON in a string."""
    return json.dumps(arguments, ensure_ascii=False)


def merge_system_prompt(
    pieces: AppendOnlyList[Piece], instructions: str | None = None
) -> AppendOnlyList[Piece]:
    """Join the system texts that open a conversation, and ``instructions`` before them, into one
    system prompt.
    """
    opening = [piece.text for piece in takewhile(lambda piece: piece.role == "system", pieces)]
    start = len(opening)
    if instructions:
        opening.insert(0, instructions)
    if not opening:
        return pieces
    return pieces.prefixed(Piece(SYSTEM_PROMPT, "system", "text", "\n".join(opening)), start)


class Refusal(WireModel):
    """A refusal by some model, in a history that a client sends back."""

    type: Literal["refusal"]
    refusal: str


class TextPart(WireModel):
    """A part of a message that is text, whatever its type is called."""

    text: str


class Function(WireModel):
    """A function that a client offers."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


def part_text(part: TextPart | Refusal | Typed) -> str:
    """Return a part of a message as the text that the model gets."""
    match part:
        case TextPart():
            return part.text
        case Refusal():
            return part.refusal
        case _:
            return omission_text(part.type.removesuffix("_url").removeprefix("input_"))


def ignored_settings(body: RequestBody, names: Iterable[str]) -> Iterator[str]:
    """Return the settings that a client asked for and does not get: those among ``names``, those of
    both dialects, and some that are unknown here.
    """
    for name in names:
        value = getattr(body, name)
        if value is not None and value is not False:  # 0 is a setting
            yield name
    if getattr(body, "tool_choice", None) not in (None, "auto"):
        yield "tool_choice"
    if getattr(body, "parallel_tool_calls", None) is False:
        yield "parallel_tool_calls"
    yield from body.unknown_keys


def ignored_format(name: str, asked: Typed | None) -> Iterator[str]:
    """Return the name of the field with a format of the answer, if it asks for any but text."""
    if asked is not None and asked.type != "text":
        yield name


def error_response(refused: Refused) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and error envelope."""
    status = OVERLOADED_STATUS if refused.kind is RefusalKind.OVERLOADED else STATUS[refused.kind]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = "server_error" if status >= 500 else None
    if refused.is_too_long:
        code = "context_length_exceeded"
    elif refused.kind is RefusalKind.UNAUTHENTICATED:
        code = "invalid_api_key"
    elif refused.kind is RefusalKind.RATE_LIMITED:
        kind, code = "requests", "rate_limit_exceeded"
    error = {"message": str(refused), "type": kind, "param": refused.param, "code": code}
    return status, {"error": error}


def describe_model(name: str) -> dict[str, Any]:
    """Describe a model."""
    return {"id": name, "object": "model", "created": MODEL_CREATED, "owned_by": "agentrl"}


def list_models(*names: str) -> dict[str, Any]:
    """List the models."""
    return {"object": "list", "data": [describe_model(name) for name in names]}

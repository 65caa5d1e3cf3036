"""Anthropic Messages: what a client may send, and what it gets back.

Requests are judged strictly (types, roles, block kinds, unknown top-level keys), as Anthropic's own
API does; unknown keys inside blocks pass, because clients grow them with every version.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError

from runners.gateway.conversation import (
    SYSTEM_PROMPT,
    Answer,
    Piece,
    TurnRequest,
    renderer_messages,
)
from runners.gateway.refusal import Refused, Why

BILLING_HEADER = "x-anthropic-billing-header:"
"""Claude Code opens its system prompt with this line; it changes between requests and says nothing
to a model.
"""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Text(_Wire):
    type: Literal["text"]
    text: str


class _Thinking(_Wire):
    type: Literal["thinking"]
    thinking: str


class _RedactedThinking(_Wire):
    type: Literal["redacted_thinking"]


class _Image(_Wire):
    type: Literal["image"]
    source: dict[str, Any]


class _Document(_Wire):
    type: Literal["document"]
    source: dict[str, Any]


class _ToolReference(_Wire):
    type: Literal["tool_reference"]
    tool_name: str


class _ToolUse(_Wire):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


def _as_blocks(content: object) -> object:
    """Read a bare string as one text block: clients flip between the two."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_Shown = Annotated[_Text | _Image | _Document | _ToolReference, Field(discriminator="type")]


class _ToolResult(_Wire):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[_Shown], BeforeValidator(_as_blocks)] | None = None
    is_error: bool | None = None


_Block = Annotated[
    _Text | _Image | _Document | _ToolUse | _ToolResult | _Thinking | _RedactedThinking,
    Field(discriminator="type"),
]


class _Message(_Wire):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[_Block], BeforeValidator(_as_blocks)]


class _Tool(_Wire):
    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    input_schema: dict[str, Any] | None = None
    """Absent: a tool that Anthropic's servers would run."""


class _Choice(_Wire):
    type: str


class CountRequest(_Wire):
    """Body of ``POST /v1/messages/count_tokens``: everything that makes the prompt, and what rides
    along unread.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    system: Annotated[list[_Text], BeforeValidator(_as_blocks)] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    thinking: _Choice | None = None
    betas: list[str] | None = None
    cache_control: dict[str, Any] | None = None
    container: str | dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    inference_geo: str | None = None
    mcp_servers: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    service_tier: str | None = None
    speed: str | None = None


class MessagesRequest(CountRequest):
    """Body of ``POST /v1/messages``."""

    max_tokens: PositiveInt
    stream: bool = False
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


Body = TypeVar("Body", bound=BaseModel)


def parse(model: type[Body], body: bytes) -> Body:
    """Judge a request body; every fault found is named in the refusal."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}".removeprefix(": ")
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
        raise Refused(Why.INVALID, "; ".join(faults[:5]) + more) from None


def turn_request(body: CountRequest) -> TurnRequest:
    """Free a request of its dialect; refuses one that ends with an assistant message."""
    pieces = tuple(_pieces(body))
    if not pieces:
        raise Refused(Why.INVALID, "messages: all of them are empty")
    if pieces[-1].role == "assistant":
        raise Refused(
            Why.INVALID,
            "messages: the last message is the assistant's; this model does not continue "
            "prefilled answers, so the conversation must end with a user message",
        )
    sampled = body if isinstance(body, MessagesRequest) else None
    return TurnRequest(
        model=body.model,
        pieces=pieces,
        tools=[_function(tool) for tool in body.tools or () if tool.input_schema is not None],
        max_tokens=sampled.max_tokens if sampled else 1,
        stop=tuple(sampled.stop_sequences or ()) if sampled else (),
        show_thinking=body.thinking is not None and body.thinking.type != "disabled",
        ignored=tuple(_ignored(sampled)) if sampled else (),
    )


def to_renderer_messages(
    body: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages and tools that a request body (JSON object) puts before the model."""
    request = turn_request(
        parse(CountRequest, orjson.dumps({k: v for k, v in body.items() if k not in _SAMPLING}))
    )
    return renderer_messages(request.pieces), request.tools


_SAMPLING = MessagesRequest.model_fields.keys() - CountRequest.model_fields.keys()


def _pieces(body: CountRequest) -> Iterator[Piece]:
    system = [
        block.text for block in body.system or () if not block.text.startswith(BILLING_HEADER)
    ]
    if system:
        yield Piece(SYSTEM_PROMPT, "system", "text", "\n".join(system))
    for index, message in enumerate(body.messages):
        for block in message.content:
            owner = _OWNER.get(block.type, message.role)
            if owner != message.role:
                raise Refused(
                    Why.INVALID,
                    f"messages.{index}: {block.type} cannot stand in a {message.role} message",
                )
            piece = _piece(index, message.role, block)
            if piece.kind in ("tool_call", "tool_result") or piece.text:
                yield piece


_OWNER = {"tool_use": "assistant", "thinking": "assistant", "tool_result": "user"}


def _piece(index: int, role: Literal["user", "assistant", "system"], block: _Block) -> Piece:
    match block:
        case _ToolUse():
            return Piece(
                index,
                "assistant",
                "tool_call",
                tool_id=block.id,
                name=block.name,
                arguments=block.input,
            )
        case _ToolResult():
            shown = "\n".join(_shown(part) for part in block.content or ())
            return Piece(
                index,
                role,
                "tool_result",
                shown,
                tool_id=block.tool_use_id,
                is_error=bool(block.is_error),
            )
        case _Thinking():
            return Piece(index, role, "thinking", block.thinking)
        case _RedactedThinking():
            return Piece(index, role, "thinking")
        case _:
            return Piece(index, role, "text", _shown(block))


def _shown(block: _Text | _Image | _Document | _ToolReference) -> str:
    """Return what a model that reads text sees of a block."""
    match block:
        case _Text():
            return block.text
        case _ToolReference():
            return f"[tool {block.tool_name} is available]"
        case _Document() if block.source.get("type") == "text" and isinstance(
            block.source.get("data"), str
        ):
            return str(block.source["data"])
        case _:
            what = f"{block.type} {block.source.get('media_type', '')}".strip()
            return f"[{what} omitted: this model reads text only]"


def _function(tool: _Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
        },
    }


def _ignored(body: MessagesRequest) -> Iterator[str]:
    for name in ("temperature", "top_p", "top_k"):
        if getattr(body, name) is not None:
            yield name
    if body.tool_choice is not None and body.tool_choice.type != "auto":
        yield "tool_choice"


def new_call_id() -> str:
    """Issue the id of a tool call."""
    return f"toolu_{secrets.token_hex(12)}"


def new_message_id() -> str:
    """Issue the id of an answer."""
    return f"msg_{secrets.token_hex(12)}"


def message(answer: Answer, request: TurnRequest, message_id: str) -> dict[str, Any]:
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
        **opening(request, message_id, 0),
        "content": content,
        "stop_reason": answer.stop_reason,
        "stop_sequence": answer.stop_sequence,
        "usage": _usage(answer.usage),
    }


def opening(request: TurnRequest, message_id: str, prompt_tokens: int) -> dict[str, Any]:
    """Return the empty Message that opens a stream."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(
            {"prompt_tokens": prompt_tokens, "cached_tokens": 0, "completion_tokens": 0}
        ),
    }


def _usage(usage: Mapping[str, int]) -> dict[str, int]:
    """Split the prompt as Anthropic does: what the cache held counts apart, and at least one token
    was new.
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
    return {"type": "error", "error": {"type": refused.why.value, "message": str(refused)}}

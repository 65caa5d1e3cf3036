"""Anthropic Messages: requests.

Their known parts are validated strictly (types, roles, block kinds); unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, PositiveInt, TypeAdapter

from runners.gateway.conversation import (
    SYSTEM_PROMPT,
    Piece,
    TurnRequest,
    group_messages,
    reference_text,
)
from runners.gateway.dialects import anthropic_reply
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.attribution import is_claude_code, read_attribution
from runners.gateway.dialects.body import (
    NOTHING_KEPT,
    ModelName,
    Name,
    Other,
    RequestBody,
    StopSequences,
    Typed,
    WireModel,
    check_conversation,
    must_be_null,
    omission_text,
    read_object,
    text_as_list,
)
from runners.gateway.dialects.contract import Dialect, ParsedRequest, stands_alone
from runners.gateway.refusal import RefusalKind, Refused

BILLING_HEADER = "x-anthropic-billing-header:"
"""Beginning of the first line of Claude Code's system prompt. The line differs between requests and
means nothing to a model, so it is left out: otherwise no request would continue another.
"""


class _Text(WireModel):
    type: Literal["text"]
    text: str


class _Thinking(WireModel):
    type: Literal["thinking"]
    thinking: str


class _RedactedThinking(WireModel):
    type: Literal["redacted_thinking"]


class _Media(WireModel):
    type: Literal["image", "document"]
    source: dict[str, Any]
    title: str | None = None
    context: str | None = None
    """The client's words on a document; the model is to see them, as its title."""


class _ToolReference(WireModel):
    type: Literal["tool_reference"]
    tool_name: str


class _ToolUse(WireModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Any = None


class _OtherBlock(Other):
    """Blocks of tools that Anthropic's servers run, of the beta, and of files."""

    type: Literal[
        "search_result",
        "browser_state",
        "container_upload",
        "compaction",
        "fallback",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "advisor_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "mcp_tool_listing",
        "tool_addition",
        "tool_removal",
    ]


_ResultBlock = Annotated[_Text | _Media | _ToolReference | _OtherBlock, Field(discriminator="type")]


class _ToolResult(WireModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[_ResultBlock], text_as_list("text")] | None = None
    is_error: bool | None = None


_Block = Annotated[
    _Text | _Media | _ToolUse | _ToolResult | _Thinking | _RedactedThinking | _OtherBlock,
    Field(discriminator="type"),
]


class _Message(WireModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[_Block], text_as_list("text")]


class _Tool(WireModel):
    name: Name = "tool"
    """Toolsets of servers have none."""
    description: str | None = None
    type: str | None = None
    input_schema: dict[str, Any] | None = None
    """Absent: a tool that Anthropic's servers would run; it is left out."""
    defer_loading: bool | None = None
    """The model is to see it only where a result refers to it."""


class CountRequest(RequestBody):
    """Body of ``POST /v1/messages/count_tokens``: the fields that make the prompt, and those that
    are accepted without effect.
    """

    model: ModelName
    messages: Annotated[list[_Message], Field(min_length=1)]
    system: Annotated[list[_Text], text_as_list("text")] | None = None
    tools: list[_Tool] | None = None
    tool_choice: Typed | None = None
    thinking: Typed | None = None
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
    thread: Annotated[None, must_be_null(f"{NOTHING_KEPT} in messages")] = None
    """A conversation that Anthropic's servers would hold: the client sends only what is new."""


class MessagesRequest(CountRequest):
    """Body of ``POST /v1/messages``."""

    max_tokens: PositiveInt
    stream: bool = False
    stop_sequences: StopSequences | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


MODEL_CREATED = "2026-01-01T00:00:00Z"
"""Clients expect a date; a policy in training has none."""


def build_request(
    body: CountRequest, pieces: AppendOnlyList[Piece], headers: Mapping[str, str]
) -> ParsedRequest:
    """Return a request for a turn, or for a count; see ``Dialect.build``."""
    attribution = read_attribution(headers)
    sampled = body if isinstance(body, MessagesRequest) else None
    if sampled and is_claude_code(headers) and _wants_json(body) and not body.tools:
        attribution = replace(attribution, request_class="side")  # a title or a verdict
    request = TurnRequest(
        model=body.model,
        pieces=check_conversation(_add_system_prompt(body, pieces), "messages"),
        tools=[
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in _shown_tools(body.tools or (), pieces)
        ],
        max_tokens=sampled.max_tokens if sampled else 1,
        stop=tuple(sampled.stop_sequences or ()) if sampled else (),
        show_thinking=body.thinking is not None and body.thinking.type != "disabled",
        ignored=tuple(_ignored(sampled)) if sampled else (),
        unknown_keys=len(body.model_extra or ()),
        attribution=attribution,
    )
    return ParsedRequest(request, anthropic_reply, sampled is not None and sampled.stream)


def _shown_tools(tools: Sequence[_Tool], pieces: Sequence[Piece]) -> Iterator[_Tool]:
    """Yield the tools that the model is to see, those to which results refer among them."""
    is_found_by_server = any((tool.type or "").startswith("tool_search") for tool in tools)
    referred: set[str] = set()
    if not is_found_by_server and any(tool.defer_loading for tool in tools):
        referred.update(name for piece in pieces for name in piece.references)
    for tool in tools:
        is_hidden = tool.defer_loading and not is_found_by_server and tool.name not in referred
        if tool.input_schema is not None and not is_hidden:
            yield tool


def _wants_json(body: CountRequest) -> bool:
    format_ = (body.output_config or {}).get("format") or body.output_format
    return isinstance(format_, dict) and format_.get("type") == "json_schema"


def to_renderer_messages(
    body: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages and tools that the model gets of a request body (a JSON object)."""
    counted = {key: value for key, value in body.items() if key not in _SAMPLING}
    request = COUNT.parse_request(orjson.dumps(counted), {}).request
    return group_messages(request.pieces, request.tools), request.tools


_SAMPLING = MessagesRequest.model_fields.keys() - CountRequest.model_fields.keys()


def _add_system_prompt(body: CountRequest, pieces: AppendOnlyList[Piece]) -> AppendOnlyList[Piece]:
    system = [
        block.text for block in body.system or () if not block.text.startswith(BILLING_HEADER)
    ]
    prompt = Piece(SYSTEM_PROMPT, "system", "text", "\n".join(system))
    return pieces if prompt.is_empty else pieces.prefixed(prompt)


def _split_message(message: _Message, index: int) -> Iterator[Piece]:
    for block in message.content:
        owner = _OWNER.get(block.type, message.role)
        if owner != message.role:
            raise Refused(
                RefusalKind.INVALID,
                f"messages.{index}: {block.type} cannot stand in a {message.role} message",
            )
        yield _piece(index, message.role, block)


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
                arguments=read_object(block.input, "input"),
            )
        case _ToolResult():
            text = "\n".join(_block_text(part) for part in block.content or ())
            return Piece(
                index,
                role,
                "tool_result",
                text,
                tool_id=block.tool_use_id,
                is_error=bool(block.is_error),
                note=next(map(_note, filter(_note, block.content or ())), ""),
                references=tuple(
                    part.tool_name
                    for part in block.content or ()
                    if isinstance(part, _ToolReference)
                ),
            )
        case _Thinking():
            return Piece(index, role, "thinking", block.thinking)
        case _RedactedThinking():
            return Piece(index, role, "thinking")
        case _:
            return Piece(index, role, "text", _block_text(block), note=_note(block))


def _note(block: object) -> str:
    """Return the type of a block that a text or a note stands for; else ``""``."""
    return block.type if isinstance(block, _OtherBlock) else ""


def _block_text(block: _Text | _Media | _ToolReference | _OtherBlock) -> str:
    """Return a block as the text that the model gets."""
    match block:
        case _OtherBlock():
            return block.shown_text()
        case _Text():
            return block.text
        case _ToolReference():
            return reference_text(block.tool_name)
        case _:
            parts = (block.title, block.context, _source_text(block.type, block.source))
            return "\n".join(part for part in parts if part)


def _source_text(kind: str, source: Mapping[str, Any]) -> str:
    """Return the text of a document that has one, else a note."""
    match source:
        case {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)}:
            return text
        case {"type": "content", "content": list(parts)}:
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            return "\n".join(
                text if isinstance(text, str) else omission_text("image") for text in texts
            )
    return omission_text(f"{kind} {source.get('media_type', '')}")


def _ignored(body: MessagesRequest) -> Iterator[str]:
    for name in ("temperature", "top_p", "top_k"):
        if getattr(body, name) is not None:
            yield name
    if body.tool_choice is not None and body.tool_choice.type != "auto":
        yield "tool_choice"
    if _wants_json(body):
        yield "output_config.format"
    yield from body.unknown_keys


def error_response(refused: Refused) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and error envelope."""
    return refused.status, anthropic_reply.error_body(refused)


def describe_model(name: str) -> dict[str, Any]:
    """Describe a model."""
    return {"type": "model", "id": name, "display_name": name, "created_at": MODEL_CREATED}


def list_models(*names: str) -> dict[str, Any]:
    """List the models."""
    ends = {"first_id": names[0], "last_id": names[-1], "has_more": False}
    return {"data": [describe_model(name) for name in names], **ends}


_ITEMS = TypeAdapter(list[_Message])

TURN = Dialect(
    MessagesRequest, "messages", _ITEMS, _split_message, joins=stands_alone, build=build_request
)
"""``POST /v1/messages``."""
COUNT = Dialect(
    CountRequest, "messages", _ITEMS, _split_message, joins=stands_alone, build=build_request
)
"""``POST /v1/messages/count_tokens``."""

"""OpenAI Responses: requests.

The gateway stores no items for its clients: a request brings its whole conversation, as Codex's do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PositiveInt

from runners.gateway.conversation import SYSTEM_PROMPT, Piece, RequestAttribution, Role, TurnRequest
from runners.gateway.dialects import openai, openai_tools
from runners.gateway.dialects.attribution import read_codex
from runners.gateway.dialects.body import (
    WireModel,
    check_conversation,
    must_be_null,
    omission_text,
    parse_body,
)
from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.dialects.openai import describe_model, error_response, list_models
from runners.gateway.dialects.openai_responses_reply import ResponsesReply
from runners.gateway.dialects.openai_tools import PolicyTool, Tool

__all__ = [
    "ResponsesRequest",
    "describe_model",
    "error_response",
    "list_models",
    "parse_request",
    "to_turn_request",
]


class _Text(WireModel):
    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str


class _OtherPart(WireModel):
    type: Literal["input_image", "input_file", "input_audio"]


_Part = Annotated[_Text | openai.Refusal | _OtherPart, Field(discriminator="type")]


def _as_parts(content: object) -> object:
    """Return a bare string as one text part."""
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


_Content = Annotated[list[_Part], BeforeValidator(_as_parts)]


class _Message(WireModel):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class _Reasoning(WireModel):
    type: Literal["reasoning"]
    summary: list[_Text] | None = None
    content: list[_Text] | None = None


class _FunctionCall(WireModel):
    type: Literal["function_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    arguments: str


class _CustomCall(WireModel):
    type: Literal["custom_tool_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    input: str


class _ShellAction(WireModel):
    command: list[str]


class _ShellCall(WireModel):
    type: Literal["local_shell_call"]
    call_id: str
    action: _ShellAction


class _Result(WireModel):
    type: Literal["function_call_output", "custom_tool_call_output", "local_shell_call_output"]
    call_id: str
    output: _Content


def _as_item(item: object) -> object:
    """Return an item with its type, which only messages may leave out."""
    if isinstance(item, dict) and "type" not in item and "role" in item:
        return {**item, "type": "message"}
    return item


def _as_items(content: object) -> object:
    """Return a bare string as one message of the user."""
    return [{"role": "user", "content": content}] if isinstance(content, str) else content


_Item = Annotated[
    Annotated[
        _Message | _Reasoning | _FunctionCall | _CustomCall | _ShellCall | _Result,
        Field(discriminator="type"),
    ],
    BeforeValidator(_as_item),
]


class _Typed(WireModel):
    type: str


class _ReasoningSettings(WireModel):
    effort: str | None = None


class _TextSettings(WireModel):
    format: _Typed | None = None


class ResponsesRequest(WireModel):
    """Body of ``POST /v1/responses``."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: Annotated[list[_Item], BeforeValidator(_as_items), Field(min_length=1)]
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | _Typed | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: PositiveInt | None = None
    stream: bool | None = None
    reasoning: _ReasoningSettings | None = None
    text: _TextSettings | None = None
    previous_response_id: Annotated[
        None, must_be_null("no responses are kept here: send the whole conversation in input")
    ] = None
    conversation: Annotated[
        None, must_be_null("no conversations are kept here: send the whole conversation in input")
    ] = None
    prompt: Annotated[
        None, must_be_null("no prompt templates are kept here: send instructions and input")
    ] = None
    background: Literal[False] | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None

    client_metadata: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    """No effect: nothing is stored for clients."""
    stream_options: dict[str, Any] | None = None
    truncation: str | None = None
    user: str | None = None


_SAMPLING = ("temperature", "top_p", "top_logprobs", "max_tool_calls")


def parse_request(body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
    """Parse a ``POST /v1/responses``."""
    wire = parse_body(ResponsesRequest, body)
    tools, left_out = openai_tools.to_policy_tools(wire.tools or ())
    request = to_turn_request(
        wire, tools, left_out, read_codex(headers, wire.client_metadata or {})
    )
    reply = ResponsesReply(tools)
    return ParsedRequest(request, reply, reply if wire.stream else None)


def to_turn_request(
    body: ResponsesRequest,
    tools: Mapping[str, PolicyTool],
    left_out: list[str],
    attribution: RequestAttribution,
) -> TurnRequest:
    """Return a request free of its dialect; raises Refused if it ends with an assistant's item."""
    wants_thinking = body.reasoning is not None and body.reasoning.effort != "none"
    format_ = body.text.format if body.text else None
    return TurnRequest(
        model=body.model,
        pieces=check_conversation(openai.merge_system_prompt(_pieces(body)), "input"),
        tools=[tool.function for tool in tools.values()],
        max_tokens=body.max_output_tokens or openai.NO_LIMIT,
        show_thinking=wants_thinking,
        ignored=(
            *openai.ignored_settings(body, _SAMPLING),
            *(f"tools.{kind}" for kind in left_out),
        ),
        attribution=attribution,
        structured=format_ is not None and format_.type != "text",
    )


def _pieces(body: ResponsesRequest) -> Iterator[Piece]:
    yield Piece(SYSTEM_PROMPT, "system", "text", body.instructions or "")
    first_of_turn: int | None = None
    for index, item in enumerate(body.input):
        if isinstance(item, _Result) or (isinstance(item, _Message) and item.role != "assistant"):
            first_of_turn = None
            yield from _input_pieces(index, item)
        else:  # a turn comes back as several items; they count as one message
            first_of_turn = index if first_of_turn is None else first_of_turn
            yield from _assistant_pieces(first_of_turn, item)


def _input_pieces(index: int, item: _Message | _Result) -> Iterator[Piece]:
    if isinstance(item, _Result):
        text = "\n".join(map(_part_text, item.output))
        yield Piece(index, "user", "tool_result", text, tool_id=item.call_id)
        return
    role: Role = "user" if item.role == "user" else "system"
    for part in item.content:
        yield Piece(index, role, "text", _part_text(part))


def _assistant_pieces(
    index: int, item: _Message | _Reasoning | _FunctionCall | _CustomCall | _ShellCall
) -> Iterator[Piece]:
    match item:
        case _Message():
            for part in item.content:
                yield Piece(index, "assistant", "text", _part_text(part))
            return
        case _Reasoning():
            text = "\n".join(map(_part_text, item.content or item.summary or ()))
            yield Piece(index, "assistant", "thinking", text)
            return
        case _FunctionCall():
            name = openai_tools.policy_name(item.name, item.namespace)
            arguments = openai.read_arguments(item.arguments)
        case _CustomCall():
            name = openai_tools.policy_name(item.name, item.namespace)
            arguments = {openai_tools.FREEFORM_INPUT: item.input}
        case _ShellCall():
            name = openai_tools.LOCAL_SHELL
            line = openai_tools.join_command(item.action.command)
            arguments = {openai_tools.SHELL_COMMAND: line}
    yield Piece(
        index, "assistant", "tool_call", tool_id=item.call_id, name=name, arguments=arguments
    )


def _part_text(part: _Text | openai.Refusal | _OtherPart) -> str:
    match part:
        case _Text():
            return part.text
        case openai.Refusal():
            return part.refusal
        case _:
            return omission_text(part.type.removeprefix("input_"))

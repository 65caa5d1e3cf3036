"""OpenAI Chat Completions: requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, PositiveInt, Tag

from runners.gateway.conversation import Piece, Role, TurnRequest
from runners.gateway.dialects import openai
from runners.gateway.dialects.body import (
    WireModel,
    check_conversation,
    must_be_null,
    omission_text,
    parse_body,
)
from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.dialects.openai import describe_model, error_response, list_models
from runners.gateway.dialects.openai_chat_reply import ChatReply

__all__ = [
    "ChatRequest",
    "describe_model",
    "error_response",
    "list_models",
    "parse_request",
    "to_turn_request",
]


class _Text(WireModel):
    type: Literal["text"]
    text: str


class _OtherPart(WireModel):
    type: Literal["image_url", "input_audio", "file"]


_Part = Annotated[_Text | openai.Refusal | _OtherPart, Field(discriminator="type")]


def _as_parts(content: object) -> object:
    """Return a bare string as one text part: clients send either, even of one message."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


_Content = Annotated[list[_Part], BeforeValidator(_as_parts)]


class _Function(WireModel):
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class _Call(WireModel):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _InputMessage(WireModel):
    role: Literal["system", "developer", "user"]
    content: _Content


class _Assistant(WireModel):
    role: Literal["assistant"]
    content: _Content | None = None
    reasoning_content: str | None = None
    """Not OpenAI's, but many servers and clients have it."""
    tool_calls: list[_Call] | None = None
    function_call: Annotated[
        None, must_be_null("legacy function calls are not served: use tool_calls")
    ] = None


class _Result(WireModel):
    role: Literal["tool"]
    tool_call_id: str
    content: _Content


_Message = Annotated[_InputMessage | _Assistant | _Result, Field(discriminator="role")]


class _FunctionSchema(WireModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _FunctionTool(WireModel):
    type: Literal["function"]
    function: _FunctionSchema


class _OtherTool(WireModel):
    type: str


class _Typed(WireModel):
    type: str


class _StreamOptions(WireModel):
    include_usage: bool = False


def _tool_tag(tool: object) -> str:
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return "function" if is_function else "other"


_Tool = Annotated[
    Annotated[_FunctionTool, Tag("function")] | Annotated[_OtherTool, Tag("other")],
    Discriminator(_tool_tag),
]


class ChatRequest(WireModel):
    """Body of ``POST /v1/chat/completions``."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    tool_choice: str | _Typed | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    """The limit's older name."""
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    response_format: _Typed | None = None
    n: Literal[1] | None = None
    modalities: list[Literal["text"]] | None = None
    functions: Annotated[None, must_be_null("legacy functions are not served: use tools")] = None
    function_call: Annotated[
        None, must_be_null("legacy functions are not served: use tools and tool_choice")
    ] = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    seed: int | None = None

    metadata: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None


_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("logit_bias", "logprobs", "top_logprobs"),
)


def parse_request(body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
    """Parse a ``POST /v1/chat/completions``. Its clients send no attribution in ``headers``."""
    chat = parse_body(ChatRequest, body)
    reply = ChatReply(
        with_usage=chat.stream_options is not None and chat.stream_options.include_usage
    )
    return ParsedRequest(to_turn_request(chat), reply, reply if chat.stream else None)


def to_turn_request(body: ChatRequest) -> TurnRequest:
    """Return a request free of its dialect; raises Refused if it ends with an assistant message."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    return TurnRequest(
        model=body.model,
        pieces=check_conversation(openai.merge_system_prompt(_pieces(body)), "messages"),
        tools=[
            openai.to_function_tool(
                tool.function.name, tool.function.description, tool.function.parameters
            )
            for tool in body.tools or ()
            if isinstance(tool, _FunctionTool)
        ],
        max_tokens=body.max_completion_tokens or body.max_tokens or openai.NO_LIMIT,
        stop=tuple(stop or ()),
        ignored=tuple(_ignored_names(body)),
        structured=body.response_format is not None and body.response_format.type != "text",
    )


def _pieces(body: ChatRequest) -> Iterator[Piece]:
    for index, message in enumerate(body.messages):
        match message:
            case _InputMessage():
                role: Role = "user" if message.role == "user" else "system"
                for part in message.content:
                    yield Piece(index, role, "text", _part_text(part))
            case _Result():
                text = "\n".join(map(_part_text, message.content))
                yield Piece(index, "user", "tool_result", text, tool_id=message.tool_call_id)
            case _Assistant():
                yield Piece(index, "assistant", "thinking", message.reasoning_content or "")
                for part in message.content or ():
                    yield Piece(index, "assistant", "text", _part_text(part))
                for call in message.tool_calls or ():
                    yield Piece(
                        index,
                        "assistant",
                        "tool_call",
                        tool_id=call.id,
                        name=call.function.name,
                        arguments=openai.read_arguments(call.function.arguments),
                    )


def _part_text(part: _Text | openai.Refusal | _OtherPart) -> str:
    match part:
        case _Text():
            return part.text
        case openai.Refusal():
            return part.refusal
        case _:
            return omission_text(part.type.removesuffix("_url").removeprefix("input_"))


def _ignored_names(body: ChatRequest) -> Iterator[str]:
    yield from openai.ignored_settings(body, _SAMPLING)
    for tool in body.tools or ():
        if isinstance(tool, _OtherTool):
            yield f"tools.{tool.type}"

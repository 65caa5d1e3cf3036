"""OpenAI Chat Completions: requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PositiveInt,
    Tag,
    TypeAdapter,
    model_validator,
)
from pydantic_core import PydanticCustomError

from runners.gateway.conversation import Piece, Role, TurnRequest
from runners.gateway.dialects import openai, openai_tools
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.attribution import read_attribution
from runners.gateway.dialects.body import (
    ModelName,
    Name,
    RequestBody,
    StopSequences,
    Typed,
    WireModel,
    check_conversation,
    must_be_null,
    text_as_list,
)
from runners.gateway.dialects.contract import Dialect, ParsedRequest, stands_alone
from runners.gateway.dialects.openai_chat_reply import ChatReply


class _Text(openai.TextPart):
    type: Literal["text"]


class _OtherPart(Typed):
    type: Literal["image_url", "input_audio", "file"]


_Part = Annotated[_Text | openai.Refusal | _OtherPart, Field(discriminator="type")]

_Content = Annotated[list[_Part], text_as_list("text")]


class _Function(WireModel):
    name: Name
    arguments: Annotated[str, BeforeValidator(openai.arguments_as_text)] = ""


class _CustomTool(WireModel):
    name: Name
    input: str


class _Call(WireModel):
    id: str
    type: Literal["function", "custom"] = "function"
    function: _Function | None = None
    custom: _CustomTool | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if self.function is None and self.custom is None:
            raise PydanticCustomError("missing", "a call has a function")
        return self


class _InputMessage(WireModel):
    role: Literal["system", "developer", "user"]
    content: _Content


class _Assistant(WireModel):
    role: Literal["assistant"]
    content: _Content | None = None
    reasoning_content: str | None = None
    """Not OpenAI's, but many servers and clients have it."""
    tool_calls: list[_Call] | None = None
    refusal: str | None = None
    function_call: _Function | None = None
    """Of OpenAI's first functions, in a history."""


class _Result(WireModel):
    role: Literal["tool"]
    tool_call_id: str
    content: _Content | None = None


class _FunctionResult(WireModel):
    role: Literal["function"]
    name: Name
    content: _Content | None = None


_Message = Annotated[
    _InputMessage | _Assistant | _Result | _FunctionResult, Field(discriminator="role")
]


class _FunctionTool(WireModel):
    type: Literal["function"]
    function: openai.Function


class _StreamOptions(WireModel):
    include_usage: bool = False


def _tool_tag(tool: object) -> str:
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return "function" if is_function else "other"


_Tool = Annotated[
    Annotated[_FunctionTool, Tag("function")] | Annotated[Typed, Tag("other")],
    Discriminator(_tool_tag),
]


class ChatRequest(RequestBody):
    """Body of ``POST /v1/chat/completions``."""

    model: ModelName
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    tool_choice: str | Typed | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    """The limit's older name."""
    stop: Name | StopSequences | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    response_format: Typed | None = None
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


def build_request(
    chat: ChatRequest, pieces: AppendOnlyList[Piece], headers: Mapping[str, str]
) -> ParsedRequest:
    """Return a request for a turn; see ``Dialect.build``."""
    stop = [chat.stop] if isinstance(chat.stop, str) else chat.stop
    functions = [tool.function for tool in chat.tools or () if isinstance(tool, _FunctionTool)]
    request = TurnRequest(
        model=chat.model,
        pieces=check_conversation(openai.merge_system_prompt(pieces), "messages"),
        tools=[
            openai.to_function_tool(function.name, function.description, function.parameters)
            for function in functions
        ],
        max_tokens=chat.max_completion_tokens or chat.max_tokens or openai.NO_LIMIT,
        stop=tuple(stop or ()),
        ignored=(
            *openai.ignored_settings(chat, _SAMPLING),
            *(f"tools.{tool.type}" for tool in chat.tools or () if isinstance(tool, Typed)),
            *openai.ignored_format("response_format", chat.response_format),
        ),
        unknown_keys=len(chat.model_extra or ()),
        attribution=read_attribution(headers),
    )
    with_usage = chat.stream_options is not None and chat.stream_options.include_usage
    return ParsedRequest(request, ChatReply(with_usage), bool(chat.stream))


def _split_message(message: _Message, index: int) -> Iterator[Piece]:
    match message:
        case _InputMessage():
            role: Role = "user" if message.role == "user" else "system"
            for part in message.content:
                yield Piece(index, role, "text", openai.part_text(part))
        case _Result():
            text = "\n".join(map(openai.part_text, message.content or ()))
            yield Piece(index, "user", "tool_result", text, tool_id=message.tool_call_id)
        case _FunctionResult():
            text = "\n".join(map(openai.part_text, message.content or ()))
            yield Piece(index, "user", "tool_result", text, tool_id=_function_id(message.name))
        case _Assistant():
            yield Piece(index, "assistant", "thinking", message.reasoning_content or "")
            for part in message.content or ():
                yield Piece(index, "assistant", "text", openai.part_text(part))
            yield Piece(index, "assistant", "text", message.refusal or "")
            for call in message.tool_calls or ():
                yield _call_piece(index, call)
            if message.function_call is not None:
                function = message.function_call
                yield _call_piece(index, _Call(id=_function_id(function.name), function=function))


def _function_id(name: str) -> str:
    """Return the id of a call that has none: its function's name tells it."""
    return f"{openai.CALL_ID_PREFIX}function_{name}"


def _call_piece(index: int, call: _Call) -> Piece:
    function, custom = call.function, call.custom
    if function is not None:
        name, arguments = function.name, openai.read_arguments(function.arguments)
    else:
        assert custom is not None
        name, arguments = custom.name, {openai_tools.FREEFORM_INPUT: custom.input}
    return Piece(index, "assistant", "tool_call", tool_id=call.id, name=name, arguments=arguments)


TURN = Dialect(
    ChatRequest,
    "messages",
    TypeAdapter(list[_Message]),
    _split_message,
    joins=stands_alone,
    build=build_request,
)
"""``POST /v1/chat/completions``."""

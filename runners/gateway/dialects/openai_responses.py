"""OpenAI Responses: what a client may send.

The gateway keeps no items: a request brings its whole conversation, as Codex does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PositiveInt

from runners.gateway.attribution import Hints
from runners.gateway.conversation import SYSTEM_PROMPT, Piece, Role, TurnRequest
from runners.gateway.dialects import hints, openai, openai_tools
from runners.gateway.dialects.body import Wire, conversation, omitted, parse, unserved
from runners.gateway.dialects.contract import Asked
from runners.gateway.dialects.openai import model, models, refusal
from runners.gateway.dialects.openai_responses_reply import Reply
from runners.gateway.dialects.openai_tools import Shown, Tool

__all__ = ["ResponsesRequest", "model", "models", "read", "refusal", "turn_request"]


class _Text(Wire):
    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str


class _Unread(Wire):
    type: Literal["input_image", "input_file", "input_audio"]


_Part = Annotated[_Text | openai.Refusal | _Unread, Field(discriminator="type")]


def _as_parts(content: object) -> object:
    """Read a bare string as one text part."""
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


_Content = Annotated[list[_Part], BeforeValidator(_as_parts)]


class _Message(Wire):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class _Reasoning(Wire):
    type: Literal["reasoning"]
    summary: list[_Text] | None = None
    content: list[_Text] | None = None


class _FunctionCall(Wire):
    type: Literal["function_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    arguments: str


class _CustomCall(Wire):
    type: Literal["custom_tool_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    input: str


class _ShellAction(Wire):
    command: list[str]


class _ShellCall(Wire):
    type: Literal["local_shell_call"]
    call_id: str
    action: _ShellAction


class _Result(Wire):
    type: Literal["function_call_output", "custom_tool_call_output", "local_shell_call_output"]
    call_id: str
    output: _Content


def _as_item(item: object) -> object:
    """Name the one kind of item that may go without its type."""
    if isinstance(item, dict) and "type" not in item and "role" in item:
        return {**item, "type": "message"}
    return item


def _as_items(content: object) -> object:
    """Read a bare string as one message of the user."""
    return [{"role": "user", "content": content}] if isinstance(content, str) else content


_Item = Annotated[
    Annotated[
        _Message | _Reasoning | _FunctionCall | _CustomCall | _ShellCall | _Result,
        Field(discriminator="type"),
    ],
    BeforeValidator(_as_item),
]


class _Typed(Wire):
    type: str


class _ReasoningWish(Wire):
    effort: str | None = None


class _TextWish(Wire):
    format: _Typed | None = None


class ResponsesRequest(Wire):
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
    reasoning: _ReasoningWish | None = None
    text: _TextWish | None = None
    previous_response_id: Annotated[
        None, unserved("no responses are kept here: send the whole conversation in input")
    ] = None
    conversation: Annotated[
        None, unserved("no conversations are kept here: send the whole conversation in input")
    ] = None
    prompt: Annotated[
        None, unserved("no prompt templates are kept here: send instructions and input")
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
    """Nothing is stored for the client, whatever it says."""
    stream_options: dict[str, Any] | None = None
    truncation: str | None = None
    user: str | None = None


_SAMPLING = ("temperature", "top_p", "top_logprobs", "max_tool_calls")


def read(body: bytes, headers: Mapping[str, str]) -> Asked:
    """Judge a ``POST /v1/responses``."""
    wanted = parse(ResponsesRequest, body)
    tools, left_out = openai_tools.shown(wanted.tools or ())
    request = turn_request(
        wanted, tools, left_out, hints.codex(headers, wanted.client_metadata or {})
    )
    reply = Reply(tools)
    return Asked(request, reply, reply if wanted.stream else None)


def turn_request(
    body: ResponsesRequest, tools: Mapping[str, Shown], left_out: list[str], hints: Hints
) -> TurnRequest:
    """Free a request of its dialect; refuses one that ends with what the assistant said."""
    wants_thinking = body.reasoning is not None and body.reasoning.effort != "none"
    format_ = body.text.format if body.text else None
    return TurnRequest(
        model=body.model,
        pieces=conversation(openai.with_system_prompt(_pieces(body)), "input"),
        tools=[tool.function for tool in tools.values()],
        max_tokens=body.max_output_tokens or openai.NO_LIMIT,
        show_thinking=wants_thinking,
        ignored=(*openai.ignored(body, _SAMPLING), *(f"tools.{kind}" for kind in left_out)),
        hints=hints,
        structured=format_ is not None and format_.type != "text",
    )


def _pieces(body: ResponsesRequest) -> Iterator[Piece]:
    yield Piece(SYSTEM_PROMPT, "system", "text", body.instructions or "")
    first_of_turn: int | None = None
    for index, item in enumerate(body.input):
        if isinstance(item, _Result) or (isinstance(item, _Message) and item.role != "assistant"):
            first_of_turn = None
            yield from _given(index, item)
        else:  # a turn comes back as one item for each thing it said
            first_of_turn = index if first_of_turn is None else first_of_turn
            yield from _said(first_of_turn, item)


def _given(index: int, item: _Message | _Result) -> Iterator[Piece]:
    if isinstance(item, _Result):
        text = "\n".join(map(_shown, item.output))
        yield Piece(index, "user", "tool_result", text, tool_id=item.call_id)
        return
    role: Role = "user" if item.role == "user" else "system"
    for part in item.content:
        yield Piece(index, role, "text", _shown(part))


def _said(
    index: int, item: _Message | _Reasoning | _FunctionCall | _CustomCall | _ShellCall
) -> Iterator[Piece]:
    match item:
        case _Message():
            for part in item.content:
                yield Piece(index, "assistant", "text", _shown(part))
            return
        case _Reasoning():
            thought = "\n".join(map(_shown, item.content or item.summary or ()))
            yield Piece(index, "assistant", "thinking", thought)
            return
        case _FunctionCall():
            name = openai_tools.shown_name(item.name, item.namespace)
            arguments = openai.read_arguments(item.arguments)
        case _CustomCall():
            name = openai_tools.shown_name(item.name, item.namespace)
            arguments = {openai_tools.FREEFORM_INPUT: item.input}
        case _ShellCall():
            name = openai_tools.LOCAL_SHELL
            line = openai_tools.command_line(item.action.command)
            arguments = {openai_tools.SHELL_COMMAND: line}
    yield Piece(
        index, "assistant", "tool_call", tool_id=item.call_id, name=name, arguments=arguments
    )


def _shown(part: _Text | openai.Refusal | _Unread) -> str:
    match part:
        case _Text():
            return part.text
        case openai.Refusal():
            return part.refusal
        case _:
            return omitted(part.type.removeprefix("input_"))

"""OpenAI Responses: requests.

The gateway stores no items for its clients: a request brings its whole conversation, as Codex's do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, LiteralString

from pydantic import BeforeValidator, Field, PositiveInt, TypeAdapter
from pydantic_core import PydanticCustomError

from runners.gateway.conversation import Piece, Role, TurnRequest
from runners.gateway.dialects import openai, openai_tools
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.attribution import read_attribution
from runners.gateway.dialects.body import (
    NOTHING_KEPT,
    ModelName,
    Name,
    Other,
    RequestBody,
    Typed,
    WireModel,
    check_conversation,
    must_be_null,
    read_object,
    text_as_list,
)
from runners.gateway.dialects.contract import Dialect, ParsedRequest
from runners.gateway.dialects.openai_responses_reply import ResponsesReply
from runners.gateway.dialects.openai_tools import Tool


class _Text(openai.TextPart):
    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]


class _OtherPart(Typed):
    type: Literal["input_image", "input_file", "input_audio", "computer_screenshot"]


_Part = Annotated[_Text | openai.Refusal | _OtherPart, Field(discriminator="type")]

_Content = Annotated[list[_Part], text_as_list("input_text")]


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
    name: Name
    namespace: str | None = None
    arguments: Annotated[str, BeforeValidator(openai.arguments_as_text)]


class _CustomCall(WireModel):
    type: Literal["custom_tool_call"]
    call_id: str
    name: Name
    namespace: str | None = None
    input: str


class _ShellAction(WireModel):
    command: list[str]


class _ShellCall(WireModel):
    type: Literal["local_shell_call"]
    call_id: str
    action: _ShellAction


def _as_output(output: object) -> object:
    """Return an output as a list of parts; what is no part of a message is given as text."""
    if output is None:
        return []
    if not isinstance(output, str | list | dict):
        return output
    parts = output if isinstance(output, list) else [output]
    return [_as_part(part) for part in parts]


def _as_part(part: object) -> object:
    if isinstance(part, dict) and part.get("type") not in _PART_TYPES:
        texts = [part[name] for name in ("stdout", "stderr") if isinstance(part.get(name), str)]
        if texts and part.get("outcome") not in (None, _DONE):
            texts.append(json.dumps(part["outcome"], ensure_ascii=False))
        text = "\n".join(filter(None, texts)).strip("\n")
        return {"type": "text", "text": text or json.dumps(part, ensure_ascii=False)}
    return {"type": "text", "text": part} if isinstance(part, str) else part


_DONE = {"type": "exit", "exit_code": 0}
"""Outcome of a command that its output alone tells."""
_PART_TYPES = (
    *("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"),
    *("input_image", "input_file", "input_audio", "computer_screenshot"),
)


class _Result(WireModel):
    type: Literal[
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "computer_call_output",
        "program_output",
    ]
    call_id: str | None = None
    id: str | None = None
    output: Annotated[list[_Part], BeforeValidator(_as_output)] = Field(default_factory=list)
    result: str | None = None
    status: str | None = None


class _Action(WireModel):
    """A call whose arguments are an object of its own."""

    type: Literal["shell_call", "apply_patch_call", "computer_call", "tool_search_call", "program"]
    call_id: str | None = None
    id: str | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None
    actions: Any = None
    arguments: Any = None
    code: str | None = None


class _OtherItem(Other):
    """Items of tools that OpenAI's servers run, and of what they keep."""

    type: Literal[
        "file_search_call",
        "web_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "compaction",
        "compaction_trigger",
        "compaction_summary",
        "configuration_update",
        "additional_tools",
        "tool_search_output",
    ]


_OF_ASSISTANT = (
    "file_search_call",
    "web_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "mcp_approval_request",
    "mcp_call",
)


def _as_item(item: object) -> object:
    """Return an item with its type, which messages and references may leave out; a reference to a
    thought is one without its text, as thoughts need not come back. No other can be resolved.
    """
    if not isinstance(item, dict) or item.get("type") not in (None, "item_reference"):
        return item
    if "role" in item:
        return {**item, "type": "message"}
    if str(item.get("id")).startswith("rs_"):
        return {**item, "type": "reasoning"}
    raise PydanticCustomError("unserved", _NO_REFERENCES)


_NO_REFERENCES: LiteralString = (
    "an item that is only named by its id: nothing is kept here for clients, so send the item "
    "(clients do with store: false)"
)


def _as_items(content: object) -> object:
    """Return a bare string as one message of the user."""
    return [{"role": "user", "content": content}] if isinstance(content, str) else content


_AnyItem = (
    _Message
    | _Reasoning
    | _FunctionCall
    | _CustomCall
    | _ShellCall
    | _Action
    | _Result
    | _OtherItem
)

_Item = Annotated[
    Annotated[_AnyItem, Field(discriminator="type")],
    BeforeValidator(_as_item),
]


class _ReasoningSettings(WireModel):
    effort: str | None = None


class _TextSettings(WireModel):
    format: Typed | None = None


class ResponsesRequest(RequestBody):
    """Body of ``POST /v1/responses``."""

    model: ModelName
    input: Annotated[list[_Item], BeforeValidator(_as_items), Field(min_length=1)]
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Typed | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: PositiveInt | None = None
    stream: bool | None = None
    reasoning: _ReasoningSettings | None = None
    text: _TextSettings | None = None
    conversation: Annotated[None, must_be_null(NOTHING_KEPT)] = None
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


def build_request(
    wire: ResponsesRequest, pieces: AppendOnlyList[Piece], headers: Mapping[str, str]
) -> ParsedRequest:
    """Return a request for a turn; see ``Dialect.build``."""
    tools, left_out = openai_tools.to_policy_tools(wire.tools or ())
    format_ = wire.text.format if wire.text else None
    request = TurnRequest(
        model=wire.model,
        pieces=check_conversation(openai.merge_system_prompt(pieces, wire.instructions), "input"),
        tools=[tool.function for tool in tools.values()],
        max_tokens=wire.max_output_tokens or openai.NO_LIMIT,
        show_thinking=wire.reasoning is not None and wire.reasoning.effort != "none",
        ignored=(
            *openai.ignored_settings(wire, _SAMPLING),
            *(f"tools.{kind}" for kind in left_out),
            *openai.ignored_format("text.format", format_),
        ),
        unknown_keys=len(wire.model_extra or ()),
        attribution=read_attribution(headers, wire.client_metadata),
    )
    return ParsedRequest(request, ResponsesReply(tools), bool(wire.stream))


def _is_assistants(item: object) -> bool:
    """Return whether an item is of a turn; a turn comes back as several, which are one message."""
    match item:
        case _Message():
            return item.role == "assistant"
        case _OtherItem():
            return item.type in _OF_ASSISTANT
    return not isinstance(item, _Result)


def _split_item(item: _AnyItem, index: int) -> Iterator[Piece]:
    match item:
        case _OtherItem():
            role: Role = "assistant" if item.type in _OF_ASSISTANT else "user"
            yield Piece(index, role, "text", item.shown_text(), note=item.type)
        case _Result():
            yield Piece(
                index,
                "user",
                "tool_result",
                _output_text(item),
                tool_id=item.call_id or item.id or "",
            )
        case _Message(role="user" | "system" | "developer"):
            yield from _input_pieces(index, item)
        case _:
            yield from _assistant_pieces(index, item)


def _output_text(item: _Result) -> str:
    """Return the output of a tool as the text that the model gets."""
    if not item.output:
        return item.result or item.status or ""
    return "\n".join(map(openai.part_text, item.output))


def _input_pieces(index: int, item: _Message) -> Iterator[Piece]:
    role: Role = "user" if item.role == "user" else "system"
    for part in item.content:
        yield Piece(index, role, "text", openai.part_text(part))


def _assistant_pieces(
    index: int,
    item: _Message | _Reasoning | _FunctionCall | _CustomCall | _ShellCall | _Action,
) -> Iterator[Piece]:
    match item:
        case _Message():
            for part in item.content:
                yield Piece(index, "assistant", "text", openai.part_text(part))
            return
        case _Reasoning():
            text = "\n".join(map(openai.part_text, item.content or item.summary or ()))
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
        case _Action():
            name = item.type.removesuffix("_call")
            found = item.action or item.operation or item.arguments or item.actions or item.code
            arguments = read_object(found, openai_tools.FREEFORM_INPUT)
    tool_id = item.call_id or (item.id if isinstance(item, _Action) else None) or ""
    yield Piece(index, "assistant", "tool_call", tool_id=tool_id, name=name, arguments=arguments)


TURN = Dialect(
    ResponsesRequest,
    "input",
    TypeAdapter(list[_Item]),
    _split_item,
    joins=_is_assistants,
    build=build_request,
)
"""``POST /v1/responses``."""

"""Google's Gemini API: requests.

Most clients send calls without ids: a call's name and place is its id then, and a result is that of
the call of its name, in their order, in the message before it, as Google's API has it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    TypeAdapter,
    model_validator,
)
from pydantic.alias_generators import to_camel

from runners.gateway.conversation import SYSTEM_PROMPT, Piece, Role, TurnRequest
from runners.gateway.dialects import google_reply, openai
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.attribution import is_gemini_cli, read_attribution
from runners.gateway.dialects.body import (
    NOTHING_KEPT,
    ONE_ANSWER,
    Name,
    Other,
    RequestBody,
    StopSequences,
    WireModel,
    check_conversation,
    must_be_null,
    name_keys,
    omission_text,
    only_value,
)
from runners.gateway.dialects.contract import Dialect, ParsedRequest
from runners.gateway.refusal import RefusalKind, Refused

Item = TypeVar("Item")

_Listed = Annotated[
    list[Item], BeforeValidator(lambda given: [given] if isinstance(given, dict) else given)
]
"""A list, which clients may leave out around one item."""


class _GoogleModel(WireModel):
    """An object whose names are in camel case, or in snake case: the API takes both."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)


class _FunctionCall(_GoogleModel):
    id: str | None = None
    name: Name
    args: dict[str, Any] | None = None


class _Part(_GoogleModel):
    model_config = ConfigDict(extra="allow")

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    """None is issued here, but some clients make one up."""
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None
    inline_data: dict[str, Any] | None = None
    file_data: dict[str, Any] | None = None
    executable_code: dict[str, Any] | None = None
    code_execution_result: dict[str, Any] | None = None
    tool_call: dict[str, Any] | None = None
    """Of a tool that Google's servers run."""
    tool_response: dict[str, Any] | None = None


class _FunctionResponse(_GoogleModel):
    id: str | None = None
    name: Name
    response: dict[str, Any] | None = None
    parts: _Listed[_Part] | None = None
    """Images and other files."""


class _Content(_GoogleModel):
    role: Literal["user", "model", "function"] | None = None
    parts: _Listed[_Part] | None = None


_SCHEMAS = ("items", "additionalProperties", "additional_properties")
_SCHEMA_LISTS = ("anyOf", "any_of", "prefixItems")
_SCHEMA_MAPS = ("properties", "defs", "$defs")
_OWN_KEYS = ("nullable", "propertyOrdering", "property_ordering", "example")


def to_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of Google's as JSON Schema: types in small letters, null a type."""
    found = {key: value for key, value in schema.items() if key not in _OWN_KEYS}
    for key in _SCHEMAS:
        if isinstance(found.get(key), dict):
            found[key] = to_json_schema(found[key])
    for key in _SCHEMA_LISTS:
        if isinstance(found.get(key), list):
            found[key] = [to_json_schema(e) if isinstance(e, dict) else e for e in found[key]]
    for key in _SCHEMA_MAPS:
        if isinstance(found.get(key), dict):
            found[key] = {
                name: to_json_schema(each) if isinstance(each, dict) else each
                for name, each in found[key].items()
            }
    if isinstance(kind := found.get("type"), str):
        found["type"] = [kind.lower(), "null"] if schema.get("nullable") else kind.lower()
    return found


class _FunctionDeclaration(_GoogleModel):
    name: Name
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(to_json_schema)] | None = None
    """Sent in Google's own form; converted here, as a body that goes on is not validated again."""
    parameters_json_schema: dict[str, Any] | None = None


class _Tool(_GoogleModel):
    model_config = ConfigDict(extra="allow")

    function_declarations: _Listed[_FunctionDeclaration] | None = None


class _FunctionCallingConfig(_GoogleModel):
    mode: str | None = None


class _ToolConfig(_GoogleModel):
    function_calling_config: _FunctionCallingConfig | None = None


class _ThinkingConfig(_GoogleModel):
    include_thoughts: bool | None = None


class _GenerationConfig(_GoogleModel):
    model_config = ConfigDict(extra="allow")

    candidate_count: Annotated[None, only_value(1, ONE_ANSWER)] = None
    max_output_tokens: PositiveInt | None = None
    stop_sequences: StopSequences | None = None
    response_mime_type: str | None = None
    thinking_config: _ThinkingConfig | None = None


def _text_as_content(given: object) -> object:
    """Return a bare text, or a bare part, as content."""
    if isinstance(given, str):
        given = {"text": given}
    return {"parts": [given]} if isinstance(given, dict) and "parts" not in given else given


class GenerateRequest(_GoogleModel, RequestBody):
    """Body of ``POST /v1beta/models/{model}:generateContent`` and ``:streamGenerateContent``."""

    contents: Annotated[_Listed[_Content], Field(min_length=1)]
    system_instruction: Annotated[_Content | None, BeforeValidator(_text_as_content)] = None
    tools: _Listed[_Tool] | None = None
    tool_config: _ToolConfig | None = None
    generation_config: _GenerationConfig | None = None
    cached_content: Annotated[None, must_be_null(NOTHING_KEPT)] = None

    model: str | None = None
    """As in the path."""
    safety_settings: list[dict[str, Any]] | None = None
    labels: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None


class CountTokensRequest(GenerateRequest):
    """Body of ``POST /v1beta/models/{model}:countTokens``: contents alone, or a whole request."""

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, given: Any) -> Any:
        whole = given.get("generateContentRequest") if isinstance(given, dict) else None
        return given if whole is None else whole


_TEXT_TYPES = (None, "text/plain")
_FREE_MODES = (None, "AUTO", "MODE_UNSPECIFIED")


def build_request(
    body: GenerateRequest, pieces: AppendOnlyList[Piece], headers: Mapping[str, str]
) -> ParsedRequest:
    """Return a request for a turn, or for a count; see ``Dialect.build``. The model and whether it
    streams are in the path (``endpoints.py``).
    """
    config = body.generation_config or _GenerationConfig()
    functions = [each for tool in body.tools or () for each in tool.function_declarations or ()]
    attribution = read_attribution(headers)
    wants_json = config.response_mime_type not in _TEXT_TYPES
    if (wants_json or body.tools) and not functions and is_gemini_cli(headers):
        # a verdict (who is to speak, is it a loop), or a search that Google's servers would do
        attribution = replace(attribution, request_class="side")
    request = TurnRequest(
        model=body.model or "",
        pieces=check_conversation(_add_system_prompt(body, pieces), "contents"),
        tools=[
            openai.to_function_tool(
                function.name,
                function.description,
                function.parameters_json_schema or function.parameters,
            )
            for function in functions
        ],
        max_tokens=config.max_output_tokens or openai.NO_LIMIT,
        stop=tuple(config.stop_sequences or ()),
        show_thinking=bool(config.thinking_config and config.thinking_config.include_thoughts),
        ignored=tuple(_ignored(body, wants_json=wants_json)),
        unknown_keys=len(body.model_extra or ()),
        attribution=attribution,
    )
    return ParsedRequest(request, google_reply, stream=False)


def _ignored(body: GenerateRequest, *, wants_json: bool) -> Iterator[str]:
    if body.generation_config:
        yield from name_keys(body.generation_config.model_extra)
    if wants_json:
        yield "responseMimeType"
    calling = body.tool_config and body.tool_config.function_calling_config
    if calling and calling.mode not in _FREE_MODES:
        yield "toolConfig"
    for tool in body.tools or ():
        yield from (f"tools.{name}" for name in name_keys(tool.model_extra))
    yield from body.unknown_keys


def _add_system_prompt(
    body: GenerateRequest, pieces: AppendOnlyList[Piece]
) -> AppendOnlyList[Piece]:
    content = body.system_instruction or _Content()
    text = "\n".join(_shown_part(part)[0] for part in content.parts or ())
    prompt = Piece(SYSTEM_PROMPT, "system", "text", text)
    return pieces if prompt.is_empty else pieces.prefixed(prompt)


# --- contents ---------------------------------------------------------------------------------


def _is_results(content: _Content) -> bool:
    """Return whether there are results only: those of one turn may come as several contents."""
    parts = content.parts or ()
    return bool(parts) and all(part.function_response is not None for part in parts)


def _split_content(content: _Content, index: int) -> Iterator[Piece]:
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for part in content.parts or ():
        if call := part.function_call:
            if content.role != "model":
                raise _misplaced(index, "functionCall", content)
            calls[call.name] += 1
            tool_id = call.id or _place(call.name, index, calls[call.name])
            yield Piece(
                index,
                "assistant",
                "tool_call",
                tool_id=tool_id,
                name=call.name,
                arguments=call.args or {},
            )
        elif result := part.function_response:
            if content.role == "model":
                raise _misplaced(index, "functionResponse", content)
            results[result.name] += 1
            tool_id = result.id or _place(result.name, index - 1, results[result.name])
            yield _result_piece(index, tool_id, result)
        else:
            text, note = _shown_part(part)
            is_thought = part.thought and content.role == "model"
            role: Role = "assistant" if content.role == "model" else "user"
            yield Piece(index, role, "thinking" if is_thought else "text", text, note=note)


def _misplaced(index: int, kind: str, content: _Content) -> Refused:
    return Refused(
        RefusalKind.INVALID,
        f"contents.{index}: a {kind} cannot stand in a content of role {content.role or 'user'}",
    )


def _place(name: str, index: int, number: int) -> str:
    """Return the id of a call that has none."""
    return f"{google_reply.CALL_ID_PREFIX}{index}_{number}_{name}"


def _result_piece(index: int, tool_id: str, result: _FunctionResponse) -> Piece:
    """Return a result: what the API has under ``output`` or ``error``, or else the whole object."""
    response = result.response or {}
    shown = response.values() if response.keys() <= {"output", "error"} else [response]
    texts = [each if isinstance(each, str) else _dumps(each) for each in shown]
    files = [_shown_part(part) for part in result.parts or ()]
    return Piece(
        index,
        "user",
        "tool_result",
        "\n".join([*texts, *(text for text, _ in files)]),
        tool_id=tool_id,
        is_error=response.keys() == {"error"},
        note=next((note for _, note in files), ""),
    )


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_FILES = ("inline_data", "file_data")
_OF_SERVERS = ("executable_code", "code_execution_result", "tool_call", "tool_response")


def _shown_part(part: _Part) -> tuple[str, str]:
    """Return a part as the text that the model gets, and ``Piece.note``."""
    if part.text is not None:
        return part.text, ""
    for name in (*_FILES, *_OF_SERVERS):
        value = getattr(part, name)
        if value is not None:
            kind = to_camel(name)
            if name in _FILES:
                media_type = value.get("mimeType") or value.get("mime_type") or ""
                return omission_text(f"{kind} {media_type}"), kind
            return Other.model_validate({**value, "type": kind}).shown_text(), kind
    return (omission_text("part"), "part") if part.model_extra else ("", "")


_ITEMS = TypeAdapter(list[_Content])

TURN = Dialect(
    GenerateRequest, "contents", _ITEMS, _split_content, joins=_is_results, build=build_request
)
"""``POST /v1beta/models/{model}:generateContent`` and ``:streamGenerateContent``."""
COUNT = Dialect(
    CountTokensRequest, "contents", _ITEMS, _split_content, joins=_is_results, build=build_request
)
"""``POST /v1beta/models/{model}:countTokens``."""


# --- errors and models ------------------------------------------------------------------------


def error_response(refused: Refused) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and error envelope."""
    status, _ = google_reply.STATUS[refused.kind]
    return status, google_reply.error_body(refused)


def describe_model(name: str) -> dict[str, Any]:
    """Describe a model."""
    return {
        "name": f"models/{name}",
        "displayName": name,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def list_models(*names: str) -> dict[str, Any]:
    """List the models."""
    return {"models": [describe_model(name) for name in names]}

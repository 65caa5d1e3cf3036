"""Every body that the types of the vendors' SDKs allow is read: each member of each union once.

The types are TypedDicts, Google's are models; those of ``anthropic`` and ``google-genai`` are
looked at where they are installed.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson
import pytest
from pydantic import BaseModel
from typing_extensions import TypeAliasType, is_typeddict

from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.dialects.endpoints import DIALECTS, GENERATE

MAX_DEPTH = 5
PLAIN = {
    bytes: "aGk=",
    str: "text",
    int: 1,
    float: 0.5,
    bool: True,
    object: {"any": [1, None]},
    Any: {},
}


def examples(kind: Any, depth: int = 0) -> Iterator[Any]:
    """Yield values of a type: one per member of each union, and per optional field."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Required, NotRequired, Annotated):
        yield from examples(args[0], depth)
    elif isinstance(kind, TypeAliasType):
        yield from examples(kind.__value__, depth)
    elif origin is Literal:
        yield args[0]
    elif origin in (Union, types.UnionType):
        for member in args:
            yield from examples(member, depth)
    elif is_typeddict(kind):
        yield from _objects(kind, depth)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield next(iter(kind)).value
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and _is_googles(kind):
        yield from _google_objects(kind, depth)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = {name: field.annotation for name, field in kind.model_fields.items()}
        yield {name: next(examples(hint, depth + 1), None) for name, hint in fields.items()}
    elif origin is dict or kind is dict:
        yield {}
    elif origin is not None and args:  # lists, iterables
        inner = list(examples(args[-1], depth + 1)) if depth < MAX_DEPTH else []
        yield inner[:1]
        yield from ([each] for each in inner[1:])
    elif kind is type(None):
        yield None
    else:
        yield PLAIN.get(kind, "x")


def _objects(kind: Any, depth: int) -> Iterator[dict[str, Any]]:
    if depth > MAX_DEPTH:
        return
    hints = get_type_hints(kind, include_extras=True)
    values = {name: list(examples(hint, depth + 1))[:200] for name, hint in hints.items()}
    required = [name for name, hint in hints.items() if get_origin(hint) is Required]
    least = {name: values[name][0] for name in required if values[name]}
    yield least
    for name, found in values.items():
        for value in found if depth < 3 else found[:2]:
            if name not in least or least[name] != value:
                yield {**least, name: value}


def _is_googles(kind: type[BaseModel]) -> bool:
    return kind.__module__.startswith("google.genai")


def _google_objects(kind: type[BaseModel], depth: int) -> Iterator[dict[str, Any]]:
    """Yield objects of a model with one member each, by the name that it has on the wire."""
    if depth > MAX_DEPTH:
        return
    least = {"name": "f"} if "name" in kind.model_fields else {}
    yield least
    for name, field in kind.model_fields.items():
        if name in least:  # the API asks for it, though its type does not
            continue
        found = list(examples(field.annotation, depth + 1))
        for value in found if depth < 3 else found[:2]:
            yield {**least, field.alias or name: value}


def parse(path: str, body: dict[str, Any]) -> ParsedRequest:
    return DIALECTS[path].parse_request(orjson.dumps(body), {})


def refused(path: str, bodies: Iterator[dict[str, Any]]) -> tuple[int, dict[str, str]]:
    """Return the number of bodies, and those that are refused, by what is said."""
    count = 0
    faults: dict[str, str] = {}
    for body in bodies:
        count += 1
        try:
            parse(path, body)
        except Exception as error:  # each is a finding
            said = f"{type(error).__name__}: {error}"[:200]
            faults.setdefault(said, orjson.dumps(body).decode()[:300])
    return count, faults


def test_every_message_of_chat_completions_is_read() -> None:
    module = importlib.import_module("openai.types.chat")
    user = {"role": "user", "content": "Go on."}
    bodies = (
        {"model": "m", "messages": [user, message, user]}
        for message in examples(module.ChatCompletionMessageParam)
    )
    count, faults = refused("/v1/chat/completions", bodies)
    assert count > 30  # 50 of today's SDK, 34 of that in slime's image
    assert faults == {}


def test_every_item_of_responses_is_read() -> None:
    module = importlib.import_module("openai.types.responses")
    user = {"role": "user", "content": "Go on."}
    bodies = (
        {"model": "m", "input": [user, item, user]}
        for item in examples(module.ResponseInputItemParam)
        # a reference is refused: no item is kept for clients
        if "role" in item or item.get("type") not in (None, "item_reference")
    )
    count, faults = refused("/v1/responses", bodies)
    assert count > 150
    assert faults == {}


@pytest.mark.parametrize("name", ["types.MessageParam", "types.beta.BetaMessageParam"])
def test_every_message_of_anthropic_s_api_is_read(name: str) -> None:
    pytest.importorskip("anthropic", reason="anthropic is not installed")
    path, _, attribute = name.rpartition(".")
    module = importlib.import_module(f"anthropic.{path}")
    user = {"role": "user", "content": "Go on."}
    bodies = (
        {"model": "m", "max_tokens": 9, "messages": [user, message, user]}
        for message in examples(getattr(module, attribute))
        if _is_of_its_role(message)
    )
    count, faults = refused("/v1/messages", bodies)
    assert count > 30  # 50 of today's SDK, 34 of that in slime's image
    assert faults == {}


def test_every_content_of_google_s_api_is_read() -> None:
    pytest.importorskip("google.genai", reason="google-genai is not installed")
    types: Any = importlib.import_module("google.genai.types")
    user = {"role": "user", "parts": [{"text": "Go on."}]}
    kinds = {
        "systemInstruction": "Content",
        "tools": "Tool",
        "toolConfig": "ToolConfig",
        "generationConfig": "GenerationConfig",
        "safetySettings": "SafetySetting",
    }
    contents = (
        {"contents": [user, {"role": role, "parts": [part]}, user]}
        for part in examples(types.Part)
        for role in ("user", "model")
        if OWNER.get(next(reversed(part), ""), role) == role
    )
    requests = (
        {"contents": [user], name: [value] if name in ("tools", "safetySettings") else value}
        for name, kind in kinds.items()
        for value in examples(getattr(types, kind), 1)
    )
    count, faults = refused(GENERATE, chain(contents, requests))
    assert count > 250
    assert faults == {}


OWNER = {"functionCall": "model", "functionResponse": "user"}


def _is_of_its_role(message: dict[str, Any]) -> bool:
    """Return whether every block can stand in a message of its role, which the types do not say."""
    owners = {"tool_use": "assistant", "thinking": "assistant", "tool_result": "user"}
    blocks = message.get("content", ())
    if not isinstance(blocks, list):
        return bool(blocks)
    return all(owners.get(block["type"], message["role"]) == message["role"] for block in blocks)

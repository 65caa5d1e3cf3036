"""Read the values of a call: JSON as clients can read it, and raw texts by the tool's schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"(?=.*[^\d])[\w./:-]{1,128}")
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_PYTHON_WORDS = ("True", "False", "None")
_TYPES: Mapping[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}
_ANY = frozenset[str]().union(*_TYPES.values())
MAX_SCHEMA_STEPS = 64
"""Parts of a parameter's schema that are looked at: a schema can refer to itself."""


class NotReadable(ValueError):
    """A text is not the value that it should be."""


def _refuse_constant(name: str) -> float:
    raise NotReadable(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotReadable(f"{text} is beyond the range of numbers")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def read_json_at(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at a place, white space left out, and its end.

    Raises NotReadable, also for NaN, infinite numbers and nesting that is too deep.
    """
    try:
        return _DECODER.raw_decode(text, skip_space(text, at))
    except (RecursionError, ValueError) as error:
        raise NotReadable(str(error)) from error


def read_json(text: str) -> Any:
    """Return the value of a JSON text; raises NotReadable."""
    value, end = read_json_at(text, 0)
    if skip_space(text, end) != len(text):
        raise NotReadable("there is more after the value")
    return value


def skip_space(text: str, at: int) -> int:
    """Return the place of the next character that is no white space."""
    found = _SPACE.match(text, at)
    assert found is not None  # it matches nothing at all, too
    return found.end()


def is_blank(text: str, start: int, end: int) -> bool:
    """Return whether a part of a text is white space only."""
    return skip_space(text, start) >= end


def is_quoted(text: str, start: int, end: int) -> bool:
    """Return whether a tag stands between backticks: prose about the format."""
    return text[start - 1 : start] == "`" and text[end : end + 1] == "`"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that a policy was offered, as its calls are read by them."""

    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The ``parameters`` of each, by name."""

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Tools:
        """Return tools of the OpenAI envelope."""
        schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function")
            if isinstance(function, dict) and isinstance(name := function.get("name"), str):
                parameters = function.get("parameters")
                schemas[name] = parameters if isinstance(parameters, dict) else {}
        return cls(schemas)

    def accepts_name(self, name: str) -> bool:
        """Return whether a text can be the name of a tool. It need not be offered: the agent
        program answers a call of an unknown tool with its own error.
        """
        return name in self.schemas or _NAME.fullmatch(name) is not None

    def declares(self, tool: str, key: str) -> bool:
        """Return whether a tool may have a parameter of that name."""
        schema = self.schemas.get(tool)
        return schema is None or key in _properties(schema)

    def read_value(self, tool: str, key: str, text: str, *, python: bool = False) -> Any:
        """Return the value of a parameter that is written without quotes; raises NotReadable.

        A string is taken as it is. Where the schema allows a string beside something else, the
        other reading wins only if it is written exactly so: ``1.10`` and ``"a"`` are strings.
        ``python``: the family's template writes ``True`` and ``None``; where no string is allowed,
        they are read whatever the family writes.
        """
        schema = self.schemas.get(tool, {})
        allowed = allowed_types(_properties(schema).get(key, True), schema)
        if allowed <= {"string"}:
            return text
        word = text.strip()
        may_be_string = "string" in allowed
        if word.lower() in _WORDS:
            value = _WORDS[word.lower()]
            if not may_be_string:
                return value
            if python and word in _PYTHON_WORDS and _TYPES[type(value)] & allowed:
                return value
        try:
            value = read_json(text)
        except NotReadable:
            if may_be_string:
                return text
            raise
        if not may_be_string:
            return value
        if isinstance(value, str) or allowed.isdisjoint(_TYPES[type(value)]):
            return text
        if isinstance(value, dict | list) or json.dumps(value) == text:
            return value
        return text


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def allowed_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that a schema allows, all of them if it does not say."""
    steps = iter(range(MAX_SCHEMA_STEPS))
    return _read_schema(schema, root, steps) or _ANY


def _read_schema(schema: Any, root: Mapping[str, Any], steps: Iterator[int]) -> frozenset[str]:
    if not isinstance(schema, dict) or next(steps, None) is None:
        return _ANY
    allowed = _ANY
    if isinstance(reference := schema.get("$ref"), str):
        allowed &= _read_schema(resolve_reference(reference, root), root, steps)
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared
    if isinstance(names, list) and names:
        known = frozenset(name for name in names if isinstance(name, str)) & _ANY
        allowed &= (known | {"integer"} if "number" in known else known) or _ANY
    if "const" in schema:
        allowed &= _TYPES.get(type(schema["const"]), _ANY)
    if isinstance(values := schema.get("enum"), list) and values:
        allowed &= frozenset[str]().union(*(_TYPES.get(type(value), _ANY) for value in values))
    for name in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(name), list) and branches:
            parts = [_read_schema(branch, root, steps) for branch in branches]
            allowed &= frozenset[str]().union(*parts)
    for branch in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        allowed &= _read_schema(branch, root, steps)
    if schema.get("nullable") is True:
        allowed |= {"null"}
    return allowed


def resolve_reference(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the part of a schema that a reference inside of it names; None if there is none."""
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found

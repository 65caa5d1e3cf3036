"""Turn pydantic's errors into one line per fault: the key, its value, what is wrong, the fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from conf.keys import lookup, unknown_key
from conf.schema_walk import find_models
from conf.sections.plugin import BY_NAME, BY_TARGET
from conf.suggestions import closest_match, suggest
from conf.url_secrets import hide_secrets

if TYPE_CHECKING:
    from pydantic import ValidationError

_EXPECTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_long": "must have {max_length} items",
    "too_short": "must have at least {min_length} items",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "model_type": "must be a section of keys",
    "dict_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
}

_LIST_TYPES = ("tuple_type", "list_type")
_ENTRY_NAME = "[key]"
"""pydantic's last part of the location of a mapping's name."""
_VALUE_LENGTH = 200
"""Characters of a value that a message repeats."""
_TYPES = ("bool", "int", "float", "str")
"""pydantic's names of the types of a union that have no ``[…]`` in them."""


def explain_errors(
    error: ValidationError, tree: Mapping[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Return the faults of single keys, by key, and the broken rules between keys."""
    by_key: dict[str, str] = {}
    named: set[str] = set()
    """Keys whose fault is that the value is not a certain name; other types may be possible."""
    between: list[str] = []
    for detail in error.errors(include_url=False):
        if detail["loc"]:
            key = _dotted_key(detail["loc"], tree)
            if key not in by_key or key in named:
                by_key[key] = _explain(key, detail, tree)
                named = named | {key} if detail["type"] == "literal_error" else named - {key}
        else:
            between += str(detail["ctx"]["error"]).splitlines()
    return by_key, between


def missing_value(key: str) -> str:
    """Return the fault of a key without a value."""
    return f"{key} has no value: add {key}=…"


def _dotted_key(loc: Iterable[int | str], tree: Mapping[str, Any]) -> str:
    """Return the dotted key of a pydantic location, without what pydantic adds: the tags of unions
    (``engine.embedded.port`` → ``engine.port``) and, behind a value, the types that it could have.
    """
    key = ""
    node: Any = tree
    for part in loc:
        if isinstance(part, int):
            key += f"[{part}]"
            node = node[part] if isinstance(node, list) and part < len(node) else None
            continue
        beside: Mapping[str, Any] = node if isinstance(node, Mapping) else {}
        if part in (BY_NAME, BY_TARGET, _ENTRY_NAME) or (
            part not in beside and beside.get("kind") == part
        ):
            continue
        if part not in beside and (part in _TYPES or "[" in part):
            break
        key = f"{key}.{part}" if key else part
        node = beside.get(part)
    return key


def _explain(key: str, detail: Mapping[str, Any], tree: Mapping[str, Any]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(key, tree)
    if kind in ("missing", "union_tag_not_found"):
        return missing_value(key)
    if detail["loc"][-1] == _ENTRY_NAME:
        section = key.rpartition(".")[0]
        return f"{section}: {format_value(detail['input'])} {context.get('error', 'is no name')}"
    given = f"{key}={format_value(detail['input'])}"
    if kind in _LIST_TYPES:
        return f"{given} must be a list: '{key}=[{format_value(detail['input'])}]' in the shell"
    if kind in ("string_type", "path_type"):
        if isinstance(detail["input"], list | dict):
            return f"{given} must be text"
        quoted = f"'{key}=\"{format_value(detail['input'])}\"'"
        return f"{given} must be text: quote it, {quoted} in the shell"
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", "")
        choices = expected.replace(" or ", ", ").split(", ")
        hint = suggest(str(detail["input"]), choices, ": did you mean {}?")
        return f"{given} must be {expected}{hint}"
    if kind == "value_error":
        return f"{given} {context['error']}"
    if kind in _EXPECTED:
        return f"{given} {_EXPECTED[kind].format(**context)}"
    return f"{given} is not possible: see `agentrl show {key}`"


def format_value(value: Any) -> str:
    """Return a value as the user writes it, without secrets in URLs."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = hide_secrets(_write(value)[: 10 * _VALUE_LENGTH])  # hiding takes quadratic time
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}…"


def _write(value: Any) -> str:
    """Return lists and mappings in the grammar of overrides."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{format_value(each)}' for name, each in value.items())}}}"
    return str(value)


def _unknown(key: str, tree: Mapping[str, Any]) -> str:
    """Return the fault of a key that its section does not have."""
    section, _, name = key.rpartition(".")
    others = _without(tree, key)
    fields = {field for model in find_models(section, tree) for field in model.model_fields}
    known, beside = lookup(others, section)
    if known and isinstance(beside, Mapping) and fields <= set(beside):
        return unknown_key(key, others)
    # an entry of a list or mapping, whose fields the values alone do not show
    match = closest_match(name, fields)
    hint = f"did you mean {section}.{match}?" if match else f"it has {', '.join(sorted(fields))}"
    return f"{key} is not a key: {hint}"


def _without(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a copy of ``tree`` without ``key``, so that an unknown key does not suggest itself."""
    head, _, rest = key.partition(".")
    copy = {name: value for name, value in tree.items() if rest or name != head}
    if rest and isinstance(copy.get(head), Mapping):
        copy[head] = _without(copy[head], rest)
    return copy

"""Writes strict JSON of whatever a policy, an agent or an engine produced, and reads it.

Writing never raises on foreign data, and every strict parser reads the result. NaN and infinities
become null, lone surrogates U+FFFD, integers beyond 64 bits floats, unknown types their ``repr``,
and values nested too deep for a parser an ellipsis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from conf.errors import error_text

_LEVELS = 200
"""Levels of nesting that are written; orjson reads 254."""
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def clean_text(text: str) -> str:
    """Return ``text`` so that UTF-8 can encode it: surrogate pairs joined, lone ones replaced."""
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dumps(value: Any) -> str:
    """Return ``value`` as one line of strict JSON."""
    try:
        return orjson.dumps(value, option=_OPTIONS).decode()
    except TypeError:  # orjson.JSONEncodeError: text or types that JSON has no form for
        return orjson.dumps(_clean(value), option=_OPTIONS).decode()


def loads(text: str | bytes) -> Any:
    """Return the value of ``text``; raises ValueError unless it is strict JSON."""
    return orjson.loads(text)


def _clean(value: Any, level: int = 0) -> Any:
    if level == _LEVELS:
        return "…"
    match value:
        case None | bool() | float():
            return value
        case str():
            return clean_text(value)
        case int():
            return value if -(2**63) <= value < 2**64 else _as_float(value)
        case dict():
            return {
                clean_text(key if isinstance(key, str) else _to_text(str, key)): _clean(
                    item, level + 1
                )
                for key, item in value.items()
            }
        case list() | tuple():
            return [_clean(item, level + 1) for item in value]
        case _:
            return clean_text(_to_text(repr, value))


def _to_text(convert: Callable[[object], str], value: object) -> str:
    try:
        return convert(value)
    except Exception as error:  # a hostile __str__ or __repr__ must not keep the rest from the disk
        return f"<{type(value).__name__}: {error_text(error)}>"


def _as_float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None

"""Strict JSON of whatever a policy, an agent or an engine said.

Invariant: writing never raises on foreign data, and every strict parser reads the result. NaN and
infinities become null, lone surrogates U+FFFD, integers beyond 64 bits floats, and unknown types
their ``repr``.
"""

from __future__ import annotations

from typing import Any

import orjson

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def clean_text(text: str) -> str:
    """Return ``text`` as UTF-8 can say it: surrogate pairs joined, lone ones replaced."""
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dumps(value: Any) -> str:
    """Return ``value`` as one line of strict JSON."""
    try:
        return orjson.dumps(value, option=_OPTIONS).decode()
    except TypeError:  # orjson.JSONEncodeError: text or types that JSON has no form for
        return orjson.dumps(_cleaned(value), option=_OPTIONS).decode()


def loads(text: str | bytes) -> Any:
    """Return the value of ``text``; raises ValueError unless it is strict JSON."""
    return orjson.loads(text)


def _cleaned(value: Any) -> Any:
    match value:
        case None | bool() | float():
            return value
        case str():
            return clean_text(value)
        case int():
            return value if -(2**63) <= value < 2**64 else _as_float(value)
        case dict():
            return {clean_text(str(key)): _cleaned(item) for key, item in value.items()}
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case _:
            return clean_text(repr(value))


def _as_float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None

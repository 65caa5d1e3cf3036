"""Foreign text made safe: to print, to store, and as strict JSON.

Printed, it controls no terminal and is no longer than its place. Writing JSON never raises on what
a policy, an agent or an engine produced, and every strict parser reads the result: NaN and
infinities become null, lone surrogates U+FFFD, integers beyond 64 bits floats, unknown types their
``repr``, and values nested too deep for a parser an ellipsis.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from conf.errors import error_text

SHOWN_BEFORE = 60
"""Characters before the first difference of two texts that are shown."""
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # escape sequences, carriage returns
    "\ud800-\udfff"  # surrogates, from bytes that were not UTF-8
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # Bidi_Control: text would read otherwise
)
_LEVELS = 200
"""Levels of nesting that are written; orjson reads 254."""
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def make_printable(text: str) -> str:
    """Return ``text`` with U+FFFD in place of control characters; line ends and tabs stay."""
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def make_line(text: str, limit: int) -> str:
    """Return ``text`` as one printable line of at most ``limit`` characters: with line ends it
    could pass for several.
    """
    return make_printable(shorten(" ".join(text[: 2 * limit].split()), limit))


def shorten(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters: of a longer one the end is left out.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut_excerpts(before: str, after: str, limit: int) -> tuple[str, str]:
    """Return at most ``limit`` characters of each text, from just before the first difference.

    >>> cut_excerpts("rm -rf /", "rm -i /", 20)
    ('rm -rf /', 'rm -i /')
    """
    pairs = enumerate(zip(before, after, strict=False))
    at = next((n for n, (b, a) in pairs if b != a), min(len(before), len(after)))
    start = max(0, at - SHOWN_BEFORE)
    return before[start : start + limit], after[start : start + limit]


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

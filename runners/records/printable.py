"""Makes foreign text safe to print and to store: it controls no terminal, and it is no longer than
its place.
"""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # escape sequences, carriage returns
    "\ud800-\udfff"  # surrogates, from bytes that were not UTF-8
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # Bidi_Control: text would read otherwise
)

SHOWN_BEFORE = 60
"""Characters before the first difference of two texts that are shown."""


def make_printable(text: str) -> str:
    """Return ``text`` with U+FFFD in place of control characters; line ends and tabs stay."""
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def make_line(text: str, limit: int) -> str:
    """Return ``text`` as one printable line of at most ``limit`` characters: with line ends it
    could pass for several.
    """
    return make_printable(shorten(" ".join(text[: 2 * limit].split()), limit))


def cut_excerpts(before: str, after: str, limit: int) -> tuple[str, str]:
    """Return at most ``limit`` characters of each text, from just before the first difference.

    >>> cut_excerpts("rm -rf /", "rm -i /", 20)
    ('rm -rf /', 'rm -i /')
    """
    pairs = enumerate(zip(before, after, strict=False))
    at = next((n for n, (b, a) in pairs if b != a), min(len(before), len(after)))
    start = max(0, at - SHOWN_BEFORE)
    return before[start : start + limit], after[start : start + limit]


def shorten(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters: of a longer one the end is left out.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"

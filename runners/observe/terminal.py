"""Foreign text on a terminal: what an agent, an engine or a file name says must not steer it."""

from __future__ import annotations

import re

_STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # escape sequences, carriage returns
    "\ud800-\udfff"  # no characters at all: what was no UTF-8
    "\u202a-\u202e\u2066-\u2069]"  # the direction of what follows
)


def make_printable(text: str) -> str:
    """Return ``text`` with U+FFFD for every character that is no text; lines and tabs stay."""
    return _STEERS.sub("\ufffd", text.replace("\r\n", "\n"))

"""Places in the text of a JSON object: its members, and the items of one that is a list.

The text is the bytes decoded as latin-1, one character per byte: all that JSON gives a meaning is
ASCII, so the places are those of the bytes. Values are read by the standard library's scanner only
to find their ends. It accepts more than JSON, so what is found here is checked by the parser of
bodies; where both accept a text, they agree on where each value ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_LONE = re.compile(
    rb"\\u[dD](?:[89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
"""Half of a character, escaped, without the other half."""
_BACKSLASH, _HELD = rb"\\", b"\xff\xff"
"""A backslash, escaped, and what stands for it in between: bytes that no UTF-8 has."""


def mend_unicode(body: bytes) -> tuple[bytes, int]:
    """Return a JSON text in which U+FFFD stands for each half of a character, and for bytes that
    are no UTF-8; and their number. Programs that cut a text inside an emoji send such halves.
    """
    count = 0
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            text = body.decode(errors="replace")
            count = max(1, text.count("\ufffd") - body.count(b"\xef\xbf\xbd"))
            body = text.encode()
    if b"\\ud" not in body and b"\\uD" not in body:
        return body, count

    # no function is called per match: the loop waits for this, and a body may hold nothing else
    mended, lone = _LONE.subn(rb"\\ufffd", body.replace(_BACKSLASH, _HELD))
    return mended.replace(_HELD, _BACKSLASH), count + lone


_read_value = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\n\r]*")


def find_list(text: str, name: str) -> int:
    """Return the place after the bracket that opens a member's list.

    Raises ValueError if there is none, also if the first member of that name is no list.
    """
    for key, at in _walk_members(text, _expect(text, 0, "{")):
        if key == name:
            return _expect(text, at, "[")
    raise ValueError(f"no list {name}")


def find_items(text: str, at: int, *, after_item: bool) -> tuple[list[int], int]:
    """Return the ends of the items of a list from a place on, and the place of its closing bracket.

    ``at`` is after an item, or (``after_item`` false) after the opening bracket. Raises ValueError.
    """
    ends: list[int] = []
    at = _skip_space(text, at)
    while text[at : at + 1] != "]":
        if ends or after_item:
            at = _skip_space(text, _expect(text, at, ","))
        _, at = _read_value(text, at)
        ends.append(at)
        at = _skip_space(text, at)
    return ends, at


def has_member(text: str, at: int, name: str) -> bool:
    """Return whether a member of that name comes after another one's value, which ends at ``at``;
    raises ValueError.
    """
    at = _skip_space(text, at)
    if text[at : at + 1] == "}":
        return False
    return any(key == name for key, _ in _walk_members(text, _expect(text, at, ",")))


def _walk_members(text: str, at: int) -> Iterator[tuple[object, int]]:
    """Yield the names of an object's members from ``at`` on, with the places of their values."""
    while True:
        name, at = _read_value(text, _skip_space(text, at))
        at = _skip_space(text, _expect(text, at, ":"))
        yield name, at
        at = _skip_space(text, _read_value(text, at)[1])
        if text[at : at + 1] == "}":
            return
        at = _expect(text, at, ",")


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it matches nothing at all, too
    return found.end()


def _expect(text: str, at: int, character: str) -> int:
    """Return the place after a character that comes next, blanks left out; raises ValueError."""
    at = _skip_space(text, at)
    if text[at : at + 1] != character:
        raise ValueError(f"no {character} at {at}")
    return at + 1

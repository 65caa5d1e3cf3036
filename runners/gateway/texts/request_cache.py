"""Bodies that a session has sent, by which the next one is read: agents send the whole conversation
with every request, and all of it but its end has been read before.

A body is known by its bytes: items of the conversation that are byte for byte those of an earlier
body of the same endpoint, from the first one on, are not validated, split and hashed again, but
taken over. Everything outside of the conversation is compared as one, and read again if it differs
(``Envelope``). So equal bytes at equal places of the same grammar are all that is trusted; nothing
is recognised by a digest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.gateway.conversation import Piece
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.body import RequestBody
from runners.gateway.dialects.contract import Dialect, ParsedRequest
from runners.gateway.dialects.json_text import find_items, find_list, has_member
from runners.gateway.request_limits import JsonShape, bound_shape, measure_shape
from runners.records.graph import common_prefix_length

MAX_BODIES = 8
"""Of a session: its main agent's, and those of its sub-agents at work."""
MAX_BYTES = 2 << 20
"""Of these bodies together; a longer one is read whole each time."""
NEW_ITEMS = 4
"""Items at the end of a body that its continuation may send in another form: Claude Code marks the
last one or two for its cache, and says a message of the system otherwise the second time.
"""


@dataclass(frozen=True, slots=True)
class ItemEnd:
    """The state of reading at the end of an item."""

    end: int
    """Bytes from the bracket that opens the list."""
    pieces: int
    """Pieces up to there."""
    opened: int | None
    """Message that the next item may join."""
    shape: JsonShape
    """Bound of the shape of all items up to there."""


START = ItemEnd(0, 0, None, JsonShape(0, 0))


@dataclass(frozen=True, slots=True)
class Envelope:
    """A body without the items of its conversation."""

    body: RequestBody
    """Its members as they were validated; its conversation counts for nothing."""
    shape: JsonShape


@dataclass(frozen=True, slots=True, eq=False)
class KnownBody:
    """A body, and what was read of it."""

    path: str
    body: bytes
    start: int
    """Place after the bracket that opens the conversation's list."""
    close: int
    """Place of the bracket that closes it."""
    marks: AppendOnlyList[ItemEnd]
    """By item."""
    pieces: AppendOnlyList[Piece]
    """Of all items, with their digests."""
    envelope: Envelope | None = None
    """None if another process has read the body: it keeps the envelope."""

    def view(self, start: int = 0) -> NDArray[np.uint8]:
        """Return the bytes from ``start`` on, uint8."""
        return np.frombuffer(self.body, np.uint8)[start:]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A body that may continue a known one."""

    path: str
    body: bytes
    start: int
    """See ``KnownBody.start``."""
    known: KnownBody | None = None
    items: int = 0
    """Leading items of ``known`` that it repeats."""
    same_head: bool = False
    """It repeats all before the conversation."""
    same_tail: bool = False
    """It ends as ``known`` does from the conversation's closing bracket on."""

    @property
    def mark(self) -> ItemEnd:
        """State of reading after the items that are repeated."""
        return self.known_marks[self.items - 1] if self.items else START

    @property
    def is_same(self) -> bool:
        """True if the body goes on, or repeats, nearly all that is known."""
        return self.items > 0 and self.items >= len(self.known_marks) - NEW_ITEMS

    @property
    def known_marks(self) -> Sequence[ItemEnd]:
        """Marks of what is known."""
        return self.known.marks if self.known else ()

    def new_bytes(self) -> bytes:
        """Return what is to be read, about."""
        at, end = self.start + self.mark.end, len(self.body)
        if self.known is not None and self.same_tail:
            end -= len(self.known.body) - self.known.close
        return (b"" if self.same_head else self.body[: self.start]) + self.body[at:end]


class RequestCache:
    """The bodies that a session has sent last; changed by its session only."""

    def __init__(self) -> None:
        self._bodies: list[KnownBody] = []
        """Latest first."""

    def find(self, path: str, body: bytes, name: str) -> Continuation:
        """Return a body with the known one of its endpoint that it repeats most of.

        ``name``: the member that holds the conversation. Raises ValueError if there is none.
        """
        best: Continuation | None = None
        start: int | None = None
        for known in self._bodies:
            if known.path != path:
                continue
            shared = _count_shared(known, body)
            if shared >= known.start:
                found = _compare(known, known.start, shared - known.start, body)
            else:
                start = find_list(body.decode("latin-1"), name) if start is None else start
                here = np.frombuffer(body, np.uint8)[start:]
                shared = common_prefix_length(known.view(known.start), here)
                found = replace(_compare(known, start, shared, body), same_head=False)
            if best is None or found.items > best.items:
                best = found
            if found.is_same:
                break
        return best or Continuation(path, body, find_list(body.decode("latin-1"), name))

    def add(self, read: KnownBody, found: Continuation) -> None:
        """Keep a body instead of the one that it continues, ``found.known``."""
        kept = [each for each in self._bodies if not (each is found.known and found.is_same)]
        left = MAX_BYTES
        self._bodies = []
        for each in [read, *kept][:MAX_BODIES]:
            left -= len(each.body)
            if left < 0:
                break
            self._bodies.append(each)


def _count_shared(known: KnownBody, body: bytes) -> int:
    """Return how many leading bytes a body shares with a known one; those from the bracket on that
    closes the known conversation may be left out, since no item ends behind it.
    """
    if body.startswith(known.body[: known.close]):  # as nearly always, and by memcmp
        return known.close
    return common_prefix_length(known.view(), np.frombuffer(body, np.uint8))


def _compare(known: KnownBody, start: int, shared: int, body: bytes) -> Continuation:
    """Return a body whose conversation begins at ``start`` with ``shared`` known bytes."""
    items = bisect_right(known.marks, shared, key=lambda mark: mark.end)
    same_tail = body.endswith(known.body[known.close :])
    return Continuation(known.path, body, start, known, items, True, same_tail)


def read_continuation(
    dialect: Dialect[Any, Any], found: Continuation, headers: Mapping[str, str]
) -> tuple[ParsedRequest, KnownBody]:
    """Return what a body asks for, and what was read of it.

    Raises ValueError, RecursionError or Refused if the body is not to be read in this way; then the
    whole may still be valid, and only the whole knows what is to be said of a fault.
    """
    known, mark, body = found.known, found.mark, found.body
    at = found.start + mark.end
    rest = body[at:].decode("latin-1")
    ends, close = find_items(rest, 0, after_item=found.items > 0)
    ends, close = [at + end for end in ends], at + close
    begin = body.index(b",", at) + 1 if ends and found.items else at
    new = body[begin:close]
    if (
        known is not None
        and known.envelope is not None
        and found.same_head
        and found.same_tail
        and len(body) - close == len(known.body) - known.close
    ):
        envelope = known.envelope
        items = dialect.items.validate_json(b"[" + new + b"]") if ends else []
    elif not ends and found.items:  # a list may not be empty: the last item is read again
        return read_continuation(dialect, replace(found, items=found.items - 1), headers)
    else:
        if has_member(rest, close - at + 1, dialect.conversation):
            raise ValueError("the conversation comes twice")
        envelope, items = _read_envelope(dialect, found, close, new)
    if len(items) != len(ends):
        raise ValueError("the items are not those that were found")
    marks: list[ItemEnd] = []
    pieces: list[Piece] = []
    split = dialect.split_items(items, found.items, mark.opened)
    shape, begin = mark.shape, at
    for end, (opened, added) in zip(ends, split, strict=True):
        pieces += [replace(piece, key=piece.digest()) for piece in added]
        shape = shape.join(bound_shape(body[begin:end]))
        begin = end
        marks.append(ItemEnd(end - found.start, mark.pieces + len(pieces), opened, shape))
    read = KnownBody(
        found.path,
        body,
        found.start,
        close,
        (known.marks if known else AppendOnlyList[ItemEnd]()).continue_from(found.items, marks),
        (known.pieces if known else AppendOnlyList[Piece]()).continue_from(mark.pieces, pieces),
        envelope,
    )
    return dialect.build(envelope.body, read.pieces, headers), read


def _read_envelope(
    dialect: Dialect[Any, Any], found: Continuation, close: int, new: bytes
) -> tuple[Envelope, list[Any]]:
    """Read a body with its ``new`` items only; return it without them, and them."""
    name, body = dialect.conversation, found.body
    head, tail = body[: found.start], body[close:]
    read = dialect.body.model_validate_json(head + new + tail)
    bare = read.model_copy(update={name: []})
    return Envelope(bare, measure_shape(head + tail)), getattr(read, name)


def marks_to_plain(read: KnownBody) -> dict[str, Any]:
    """Return where the conversation of a body stands, as plain values for another process."""
    marks = [(m.end, m.pieces, m.opened, m.shape.depth, m.shape.values) for m in read.marks]
    return {"start": read.start, "close": read.close, "marks": marks}


def read_marks(plain: Iterable[Sequence[Any]]) -> list[ItemEnd]:
    """Return marks that ``marks_to_plain`` was given."""
    return [
        ItemEnd(end, pieces, opened, JsonShape(depth, values))
        for end, pieces, opened, depth, values in plain
    ]


def read_shape(read: KnownBody) -> JsonShape:
    """Return a bound of the shape of a whole body."""
    items = read.marks[-1].shape
    assert read.envelope is not None  # it has been read here
    return read.envelope.shape.join(JsonShape(items.depth + 2, items.values))

"""What a turn heard and said, and how far a request repeats it.

Assistant turns are recognised by the ids of their tool calls and by their place, never by their
text: clients drop thoughts, reorder keys and reformat; what the policy sampled stays as it was
sampled. Everything else must come back unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runners.gateway.conversation import SYSTEM_PROMPT, Piece


@dataclass(frozen=True, slots=True)
class Given:
    """A piece that came from outside; it must come back unchanged."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """An uninterrupted run of assistant pieces; it must come back at its place, with its tool
    calls.
    """

    tool_ids: tuple[str, ...]
    may_vanish: bool = False
    """Nothing was said: clients drop such a turn."""


Part = Given | Said


@dataclass(frozen=True, slots=True)
class Sent:
    """A part of a request."""

    first: int
    """Index of its first piece."""
    part: Part


BreakKind = Literal["compaction", "rewrite", "rollback", "repeat", "renderer"]
"""``compaction``: a summary replaced the history; ``rewrite``: something in it changed;
``rollback``: its end was cut off; ``repeat``: the same turn was asked for with other parameters;
``renderer``: the template cannot go on after this output.
"""


@dataclass(frozen=True, slots=True)
class Break:
    """Why a request does not continue what was said before."""

    kind: BreakKind
    reason: str
    message: int | None = None
    """First message of the request that differs, -1 for the system prompt."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a request repeats a path."""

    depth: int
    """Turns that it repeats, answers included."""
    new: Sent | None
    """First part after them; None if nothing of the path can be continued."""
    why: Break | None
    """Why not further; None if it repeats the whole path and adds to it."""


def outline(pieces: Sequence[Piece], keys: Sequence[bytes]) -> list[Sent]:
    """Return the parts of a request: one per foreign piece, one per run of assistant pieces."""
    parts: list[Sent] = []
    run: list[int] = []
    """Assistant pieces since the last foreign one."""
    for at, piece in enumerate(pieces):
        if piece.role == "assistant":
            run.append(at)
            continue
        if run:
            parts.append(_said(run, pieces))
            run = []
        parts.append(Sent(at, Given(keys[at])))
    if run:
        parts.append(_said(run, pieces))
    return parts


def _said(run: Sequence[int], pieces: Sequence[Piece]) -> Sent:
    ids = [pieces[at].tool_id for at in run if pieces[at].kind == "tool_call"]
    return Sent(run[0], Said(tuple(ids)))


def follow(
    path: Sequence[Sequence[Part]], sent: Sequence[Sent], pieces: Sequence[Piece]
) -> Followed:
    """Walk along a path, given as what each turn heard and then said, as far as a request goes."""
    at = 0
    reached = Followed(0, None, None)
    for depth, parts in enumerate(path, start=1):
        for known in parts:
            came = sent[at] if at < len(sent) else None
            if came is not None and _is(known, came.part):
                at += 1
            elif not (isinstance(known, Said) and known.may_vanish):
                asked_again = came is None and known is parts[-1] and depth == len(path)
                return Followed(
                    reached.depth, reached.new, _difference(known, came, pieces, asked_again)
                )
        if at < len(sent) and isinstance(sent[at].part, Given):
            reached = Followed(depth, sent[at], None)
    if reached.depth == len(path):
        return reached
    last = sent[at] if at < len(sent) else None
    why = (
        Break("repeat", _AGAIN)
        if last is None
        else Break(
            "rewrite", f"{_place(last, pieces)} was not sampled here", _message(last, pieces)
        )
    )
    return Followed(reached.depth, reached.new, why)


_AGAIN = "the last turn was asked for again, with other parameters"


def _is(known: Part, came: Part) -> bool:
    if isinstance(known, Said) and isinstance(came, Said):
        return known.tool_ids == came.tool_ids
    return known == came


def _difference(
    known: Part, came: Sent | None, pieces: Sequence[Piece], asked_again: bool
) -> Break:
    if came is None:
        if asked_again:
            return Break("repeat", _AGAIN)
        return Break("rollback", "the end of the history is gone")
    place, message = _place(came, pieces), _message(came, pieces)
    match known, came.part:
        case Said(), Said():
            return Break("rewrite", f"{place} came back with other tool calls", message)
        case Said(), Given():
            return Break("rewrite", f"{place} stands where an assistant turn was", message)
    return Break("rewrite", f"{place} is not what was sent before", message)


def _message(sent: Sent, pieces: Sequence[Piece]) -> int:
    return pieces[sent.first].message


def _place(sent: Sent, pieces: Sequence[Piece]) -> str:
    piece = pieces[sent.first]
    if piece.message == SYSTEM_PROMPT:
        return "the system prompt"
    return f"message {piece.message} ({piece.role} {piece.kind})"

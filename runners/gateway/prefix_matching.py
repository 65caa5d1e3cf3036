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
class InputPart:
    """A piece that came from outside; it must come back unchanged."""

    key: bytes


@dataclass(frozen=True, slots=True)
class AssistantPart:
    """An uninterrupted run of assistant pieces; it must come back at its place, with its tool
    calls.
    """

    tool_ids: tuple[str, ...]
    may_vanish: bool = False
    """Nothing was said: clients drop such a turn."""


Part = InputPart | AssistantPart


@dataclass(frozen=True, slots=True)
class RequestPart:
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
class HistoryBreak:
    """Why a request does not continue what was said before."""

    kind: BreakKind
    reason: str
    message: int | None = None
    """First message of the request that differs, -1 for the system prompt."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How far a request repeats a path."""

    depth: int
    """Turns that it repeats, answers included."""
    new: RequestPart | None
    """First part after them; None if nothing of the path can be continued."""
    why: HistoryBreak | None
    """Why not further; None if it repeats the whole path and adds to it."""


def split_parts(pieces: Sequence[Piece], keys: Sequence[bytes]) -> list[RequestPart]:
    """Return the parts of a request: one per foreign piece, one per run of assistant pieces."""
    parts: list[RequestPart] = []
    run: list[int] = []
    """Assistant pieces since the last foreign one."""
    for at, piece in enumerate(pieces):
        if piece.role == "assistant":
            run.append(at)
            continue
        if run:
            parts.append(_assistant_part(run, pieces))
            run = []
        parts.append(RequestPart(at, InputPart(keys[at])))
    if run:
        parts.append(_assistant_part(run, pieces))
    return parts


def _assistant_part(run: Sequence[int], pieces: Sequence[Piece]) -> RequestPart:
    ids = [pieces[at].tool_id for at in run if pieces[at].kind == "tool_call"]
    return RequestPart(run[0], AssistantPart(tuple(ids)))


def match_prefix(
    path: Sequence[Sequence[Part]], sent: Sequence[RequestPart], pieces: Sequence[Piece]
) -> PrefixMatch:
    """Walk along a path, given as what each turn heard and then said, as far as a request goes."""
    at = 0
    reached = PrefixMatch(0, None, None)
    for depth, parts in enumerate(path, start=1):
        for known in parts:
            came = sent[at] if at < len(sent) else None
            if came is not None and _matches(known, came.part):
                at += 1
            elif not (isinstance(known, AssistantPart) and known.may_vanish):
                asked_again = came is None and known is parts[-1] and depth == len(path)
                return PrefixMatch(
                    reached.depth, reached.new, _explain_mismatch(known, came, pieces, asked_again)
                )
        if at < len(sent) and isinstance(sent[at].part, InputPart):
            reached = PrefixMatch(depth, sent[at], None)
    if reached.depth == len(path):
        return reached
    last = sent[at] if at < len(sent) else None
    why = (
        HistoryBreak("repeat", _REPEATED)
        if last is None
        else HistoryBreak(
            "rewrite",
            f"{_describe(last, pieces)} was not sampled here",
            _message_index(last, pieces),
        )
    )
    return PrefixMatch(reached.depth, reached.new, why)


_REPEATED = "the last turn was asked for again, with other parameters"


def _matches(known: Part, came: Part) -> bool:
    if isinstance(known, AssistantPart) and isinstance(came, AssistantPart):
        return known.tool_ids == came.tool_ids
    return known == came


def _explain_mismatch(
    known: Part, came: RequestPart | None, pieces: Sequence[Piece], asked_again: bool
) -> HistoryBreak:
    if came is None:
        if asked_again:
            return HistoryBreak("repeat", _REPEATED)
        return HistoryBreak("rollback", "the end of the history is gone")
    place, message = _describe(came, pieces), _message_index(came, pieces)
    match known, came.part:
        case AssistantPart(), AssistantPart():
            return HistoryBreak("rewrite", f"{place} came back with other tool calls", message)
        case AssistantPart(), InputPart():
            return HistoryBreak("rewrite", f"{place} stands where an assistant turn was", message)
    return HistoryBreak("rewrite", f"{place} is not what was sent before", message)


def _message_index(sent: RequestPart, pieces: Sequence[Piece]) -> int:
    return pieces[sent.first].message


def _describe(sent: RequestPart, pieces: Sequence[Piece]) -> str:
    piece = pieces[sent.first]
    if piece.message == SYSTEM_PROMPT:
        return "the system prompt"
    return f"message {piece.message} ({piece.role} {piece.kind})"

"""Prefix matching: how far a request repeats the history that the gateway knows.

An assistant turn is recognised by its place and by the ids of its tool calls, never by its text:
clients drop thoughts, reorder keys and reformat, and the tokens that the policy sampled stay as
they were sampled. Everything else must come back unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runners.gateway.conversation import SYSTEM_PROMPT, Piece, TurnRequest, fingerprint


@dataclass(frozen=True, slots=True)
class InputPart:
    """A piece that came from outside; it must come back unchanged."""

    key: bytes
    """``Piece.digest()``."""


@dataclass(frozen=True, slots=True)
class AssistantPart:
    """An uninterrupted run of assistant pieces; it must come back at its place, with its calls."""

    tool_ids: tuple[str, ...]
    may_vanish: bool = False
    """It has neither text nor calls: clients leave such a turn out."""


Part = InputPart | AssistantPart


@dataclass(frozen=True, slots=True)
class RequestPart:
    """A part of a request."""

    first_piece: int
    """Index of its first piece."""
    part: Part


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request with what recognises it; made once per request, since digests cost."""

    request: TurnRequest
    parts: list[RequestPart]
    fingerprint: bytes


BreakKind = Literal["compaction", "rewrite", "rollback", "repeat", "renderer"]
"""``compaction``: a summary replaced the history; ``rewrite``: something in it changed;
``rollback``: its end was cut off; ``repeat``: the same turn was asked for with other parameters;
``renderer``: the template cannot continue after this output.
"""


@dataclass(frozen=True, slots=True)
class HistoryBreak:
    """The reason why a request does not continue the history before it."""

    kind: BreakKind
    reason: str
    message: int | None = None
    """First message of the request that differs, -1 for the system prompt."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The common prefix of a request and a path of turns."""

    depth: int
    """Turns that the request repeats, answers included."""
    next_part: RequestPart | None
    """First part after them; None if nothing of the path can be continued."""
    mismatch: HistoryBreak | None
    """The reason why it ends there; None if the request repeats the whole path and adds to it."""


def prepare_request(request: TurnRequest, dialect: str) -> PreparedRequest:
    """Return a request with its parts and fingerprint."""
    keys = request.digest_pieces()
    return PreparedRequest(
        request, split_parts(request.pieces, keys), fingerprint(request, keys, dialect)
    )


def split_parts(pieces: Sequence[Piece], keys: Sequence[bytes]) -> list[RequestPart]:
    """Return the parts of a request: one per input piece, one per run of assistant pieces.

    ``keys``: the pieces' digests.
    """
    parts: list[RequestPart] = []
    run: list[int] = []
    """Assistant pieces since the last input piece."""
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
    path: Sequence[Sequence[Part]], parts: Sequence[RequestPart], pieces: Sequence[Piece]
) -> PrefixMatch:
    """Compare a request with a path of turns, from the root on.

    ``path``: for each turn the parts that its request added, then its answer; ``pieces``: those of
    the request, for the words of a mismatch.
    """
    at = 0
    reached = PrefixMatch(0, None, None)
    for depth, turn in enumerate(path, start=1):
        for known in turn:
            came = parts[at] if at < len(parts) else None
            if came is not None and _matches(known, came.part):
                at += 1
            elif not (isinstance(known, AssistantPart) and known.may_vanish):
                # the request ends where the last turn was answered: it is that turn's request
                is_repeat = came is None and known is turn[-1] and depth == len(path)
                mismatch = _explain_mismatch(known, came, pieces, is_repeat)
                return PrefixMatch(reached.depth, reached.next_part, mismatch)
        # a turn can be continued only by input: after its answer nothing more was sampled
        if at < len(parts) and isinstance(parts[at].part, InputPart):
            reached = PrefixMatch(depth, parts[at], None)
    if reached.depth == len(path):
        return reached
    if at == len(parts):
        mismatch = HistoryBreak("repeat", _REPEATED)
    else:
        place = _describe(parts[at], pieces)
        message = _message_index(parts[at], pieces)
        mismatch = HistoryBreak("rewrite", f"{place} was not sampled here", message)
    return PrefixMatch(reached.depth, reached.next_part, mismatch)


_REPEATED = "the last turn was asked for again, with other parameters"


def _matches(known: Part, came: Part) -> bool:
    if isinstance(known, AssistantPart) and isinstance(came, AssistantPart):
        return known.tool_ids == came.tool_ids
    return known == came


def _explain_mismatch(
    known: Part, came: RequestPart | None, pieces: Sequence[Piece], is_repeat: bool
) -> HistoryBreak:
    if came is None:
        if is_repeat:
            return HistoryBreak("repeat", _REPEATED)
        return HistoryBreak("rollback", "the end of the history is gone")
    place, message = _describe(came, pieces), _message_index(came, pieces)
    match known, came.part:
        case AssistantPart(), AssistantPart():
            return HistoryBreak("rewrite", f"{place} came back with other tool calls", message)
        case AssistantPart(), InputPart():
            return HistoryBreak("rewrite", f"{place} stands where an assistant turn was", message)
    return HistoryBreak("rewrite", f"{place} is not what was sent before", message)


def _message_index(part: RequestPart, pieces: Sequence[Piece]) -> int:
    return pieces[part.first_piece].message


def _describe(part: RequestPart, pieces: Sequence[Piece]) -> str:
    piece = pieces[part.first_piece]
    if piece.message == SYSTEM_PROMPT:
        return "the system prompt"
    return f"message {piece.message} ({piece.role} {piece.kind})"

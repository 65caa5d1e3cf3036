"""Prefix matching: how far a request repeats the history that the gateway knows.

An assistant turn is recognised by its place and by the ids of its tool calls, never by its text:
clients drop thoughts, reorder keys and reformat, and the tokens that the policy sampled stay as
they were sampled. Everything else must come back unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from runners.gateway.conversation import (
    SYSTEM_PROMPT,
    Piece,
    TurnRequest,
    fingerprint,
    hash_keys,
)
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.records.graph import TurnNode


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
    keys: AppendOnlyList[bytes]
    """``digest_pieces()`` of the request."""
    hashed: blake2b
    """``hash_keys`` of these."""
    parts: AppendOnlyList[RequestPart]
    fingerprint: bytes
    states: PathStates = field(default_factory=lambda: PathStates())


BreakKind = Literal["compaction", "handoff", "rewrite", "rollback", "repeat", "renderer"]
"""``compaction``: a summary replaced the history; ``handoff``: another agent of the program took it
over, under its own system prompt; ``rewrite``: something in it changed;
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


def prepare_request(
    request: TurnRequest, dialect: str, earlier: PreparedRequest | None = None
) -> PreparedRequest:
    """Return a request with its parts and fingerprint.

    ``earlier``: one of the same session; what was found of the pieces that both begin with holds
    for this one too. Parts follow from the pieces' digests, and comparisons from the parts.
    """
    if earlier is None:
        keys, shared = AppendOnlyList(request.digest_pieces()), 0
    elif shared := _count_same(request.pieces, earlier.request.pieces):
        keys = earlier.keys.continue_from(shared, request.digest_pieces(shared))
    else:
        keys = AppendOnlyList(request.digest_pieces())
        shared = _count_shared(keys, earlier.keys)
    if earlier is None or shared == 0:
        hashed = hash_keys(keys)
        mark = fingerprint(request, hashed, dialect)
        parts = AppendOnlyList(split_parts(request.pieces, keys))
        return PreparedRequest(request, keys, hashed, parts, mark)
    goes_on = shared == len(earlier.keys)
    hashed = hash_keys(keys[shared:], earlier.hashed) if goes_on else hash_keys(keys)
    kept, start = bisect_left(earlier.parts, shared, key=lambda part: part.first_piece), shared
    last = earlier.parts[kept - 1]
    if isinstance(last.part, AssistantPart):  # a run that may go on otherwise: split again
        kept, start = kept - 1, last.first_piece
    parts = earlier.parts.continue_from(kept, split_parts(request.pieces, keys, start))
    # a comparison has looked at one part more than it has gone through
    states = earlier.states.copy_before(kept)
    mark = fingerprint(request, hashed, dialect)
    return PreparedRequest(request, keys, hashed, parts, mark, states)


def _count_same(pieces: Sequence[Piece], others: Sequence[Piece]) -> int:
    return pieces.count_shared(others) if isinstance(pieces, AppendOnlyList) else 0


def _count_shared(keys: Sequence[bytes], others: Sequence[bytes]) -> int:
    length = min(len(keys), len(others))
    if keys[:length] == others[:length]:  # as nearly always
        return length
    pairs = enumerate(zip(keys, others, strict=False))
    return next(at for at, (ours, theirs) in pairs if ours != theirs)


def split_parts(
    pieces: Sequence[Piece], keys: Sequence[bytes], first: int = 0
) -> list[RequestPart]:
    """Return the parts of a request from piece ``first`` on, which begins one: one per input piece,
    one per run of assistant pieces.

    ``keys``: the pieces' digests.
    """
    parts: list[RequestPart] = []
    run: list[int] = []
    """Assistant pieces since the last input piece."""
    for at in range(first, len(pieces)):
        piece = pieces[at]
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


class PathMatcher:
    """Compares one request with many paths of a tree; each turn is compared once."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._parts = prepared.parts
        self._pieces = prepared.request.pieces
        self._states = prepared.states

    def match(self, tip: TurnNode, parts_of: Callable[[TurnNode], Sequence[Part]]) -> PrefixMatch:
        """Compare the request with the path from the root to ``tip``.

        ``parts_of`` returns the parts that a turn's request added, then its answer.
        """
        unknown: list[TurnNode] = []
        node: TurnNode | None = tip
        known: tuple[int, PathState] | None = None
        while node is not None and (known := self._states.find(node.index)) is None:
            unknown.append(node)
            node = node.parent
        length, state = known or (0, _START)
        for node in reversed(unknown):
            length, state = length + 1, _match_turn(state, parts_of(node), self._parts)
            self._states.add(node.index, length, state)
        return _conclude(state, length, self._parts, self._pieces)


@dataclass(frozen=True, slots=True)
class PathState:
    """A comparison up to the end of some turn."""

    depth: int
    """Turns that were compared."""
    at: int
    """Parts of the request that they repeat."""
    reached: int = 0
    """Turns of these that the request can continue, the last one that can counted."""
    next_part: RequestPart | None = None
    """First part after them."""
    known: Part | None = None
    """The part of turn ``depth`` that did not come; from there on nothing is compared."""
    is_last: bool = False
    """It is the last one of that turn."""


_START = PathState(0, 0)


class PathStates:
    """Comparisons of one request with paths, each up to the end of a turn."""

    def __init__(self) -> None:
        self._by_turn: dict[int, tuple[int, PathState]] = {}
        """With the length of the turn's path."""
        self._places: list[tuple[int, int]] = []
        """``PathState.at`` and turn of each, sorted: which of them hold for the next request is
        found without looking at all.
        """

    def find(self, turn: int) -> tuple[int, PathState] | None:
        """Return the length of a turn's path and the comparison; None if it is not known."""
        return self._by_turn.get(turn)

    def add(self, turn: int, length: int, state: PathState) -> None:
        """Keep the comparison up to the end of a turn."""
        self._by_turn[turn] = length, state
        insort(self._places, (state.at, turn))

    def copy_before(self, part: int) -> PathStates:
        """Return those that end before a part of the request."""
        kept = PathStates()
        end = bisect_left(self._places, (part,))
        kept._places = self._places[:end]
        kept._by_turn = self._by_turn.copy()
        for _, turn in self._places[end:]:
            del kept._by_turn[turn]
        return kept


def _match_turn(state: PathState, turn: Sequence[Part], parts: Sequence[RequestPart]) -> PathState:
    if state.known is not None:
        return state
    at, depth = state.at, state.depth + 1
    for known in turn:
        came = parts[at] if at < len(parts) else None
        if came is not None and _matches(known, came.part):
            at += 1
        elif not (isinstance(known, AssistantPart) and known.may_vanish):
            return PathState(depth, at, state.reached, state.next_part, known, known is turn[-1])
    # a turn can be continued only by input: after its answer nothing more was sampled
    if at < len(parts) and isinstance(parts[at].part, InputPart):
        return PathState(depth, at, depth, parts[at])
    return PathState(depth, at, state.reached, state.next_part)


def _conclude(
    state: PathState, length: int, parts: Sequence[RequestPart], pieces: Sequence[Piece]
) -> PrefixMatch:
    """Return the match of a whole path of ``length`` turns."""
    came = parts[state.at] if state.at < len(parts) else None
    if state.known is not None:
        # the request ends where the last turn was answered: it is that turn's request
        is_repeat = came is None and state.is_last and state.depth == length
        mismatch = _explain_mismatch(state.known, came, pieces, is_repeat)
    elif state.reached == length:
        return PrefixMatch(length, state.next_part, None)
    elif came is None:
        mismatch = HistoryBreak("repeat", _REPEATED)
    else:
        place = _describe(came, pieces)
        mismatch = HistoryBreak(
            "rewrite", f"{place} was not sampled here", _message_index(came, pieces)
        )
    return PrefixMatch(state.reached, state.next_part, mismatch)


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

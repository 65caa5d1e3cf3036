"""Prefix matching: how far a request repeats the history that the gateway knows.

An assistant turn is recognised by its place and by the rule for echoes (``echoes.py``): clients
drop thoughts, reorder keys and reformat, and the tokens that the policy sampled stay as they were
sampled; what a program changes beyond that is another turn. Everything else must come back
unchanged. Ids of calls are labels: a program may rewrite those that the session issued, but never
give one of them to another call, and a result belongs to its call whatever the id is.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

from runners.gateway.conversation import (
    CONTENT_BYTES,
    SYSTEM_PROMPT,
    Piece,
    TurnRequest,
    fingerprint,
    hash_keys,
)
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.tree.echoes import SAME, Change, Echo, compare_echo, is_blank
from runners.records.graph import TurnNode
from runners.records.text import cut_excerpts

MAX_ECHOES = 64
"""Ways in which one turn has come back that are kept: a program could make any number of them."""
MAX_CALLS_AGO = 1024
"""Calls before a result among which its own is searched."""
BLANK = b"blank"
"""Key of a turn that has neither text nor calls."""
EXCERPT = 160
"""Characters of a changed turn that its break shows."""


@dataclass(frozen=True, slots=True)
class InputPart:
    """A piece that came from outside; it must come back unchanged."""

    key: bytes
    """``Piece.digest()``, without the id."""
    call: int | str | None = None
    """Of a result: how many calls ago its call was made, 1 for the last one; its id if there is no
    such call.
    """


@dataclass(frozen=True, slots=True)
class AssistantPart:
    """An uninterrupted run of assistant pieces, sampled or from elsewhere."""

    pieces: tuple[Piece, ...]
    tool_ids: tuple[str, ...]
    """Of its calls."""
    tools: list[dict[str, Any]] = field(compare=False, repr=False)
    """Of the request that sampled it, or brought it first."""
    key: bytes = field(default=b"", compare=False)
    """Digests of its pieces but for thoughts and ids; none of what was sampled, which is compared
    when it first comes back.
    """
    echoes: dict[bytes, Echo] = field(default_factory=dict, compare=False, repr=False)
    """The ways in which it has come back, by key: each is compared once."""

    @property
    def may_vanish(self) -> bool:
        """True if it has neither text nor calls: clients leave such a turn out."""
        return is_blank(self.pieces)

    def find_echo(self, came: AssistantPart) -> Echo:
        """Return the class of a turn that came in its place."""
        if came.key == self.key and self.key:
            return SAME
        found = self.echoes.get(came.key)
        if found is None:
            found = compare_echo(self.pieces, came.pieces, self.tools)
            if len(self.echoes) < MAX_ECHOES:
                self.echoes[came.key] = found
        return found


def answer_part(pieces: tuple[Piece, ...], tools: list[dict[str, Any]]) -> AssistantPart:
    """Return the part of an answer, as it was sent (``sent_pieces``)."""
    return AssistantPart(pieces, _tool_ids(pieces), tools)


def _tool_ids(pieces: Iterable[Piece]) -> tuple[str, ...]:
    return tuple(piece.tool_id for piece in pieces if piece.kind == "tool_call")


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


BreakKind = Literal[
    "compaction", "handoff", "edit", "rewrite", "rollback", "repeat", "tools", "renderer"
]
"""``compaction``: a summary replaced the history; ``handoff``: another agent of the program took it
over, under its own system prompt; ``edit``: the program changed a turn of the assistant;
``rewrite``: it changed something else;
``rollback``: its end was cut off; ``repeat``: the same turn was asked for with other parameters;
``tools``: the request has tools that the prompt before does not show; ``renderer``: the template
cannot continue after this output.
"""


@dataclass(frozen=True, slots=True)
class HistoryBreak:
    """The reason why a request does not continue the history before it."""

    kind: BreakKind
    reason: str
    message: int | None = None
    """First message of the request that differs, -1 for the system prompt."""
    before: str = ""
    """Excerpt of an edited turn as it was sent, from a little before the first difference on."""
    after: str = ""
    """The same part of what came back."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The common prefix of a request and a path of turns."""

    depth: int
    """Turns that the request repeats, answers included."""
    next_part: RequestPart | None
    """First part after them; None if nothing of the path can be continued."""
    mismatch: HistoryBreak | None
    """The reason why it ends there; None if the request repeats the whole path and adds to it."""
    changed: int = 0
    """Assistant turns in it that came back in another form."""

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Return what makes one match better than another."""
        return self.mismatch is None, self.depth, -self.changed


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
        parts = AppendOnlyList(split_parts(request.pieces, keys, request.tools))
        return PreparedRequest(request, keys, hashed, parts, mark)
    goes_on = shared == len(earlier.keys)
    hashed = hash_keys(keys[shared:], earlier.hashed) if goes_on else hash_keys(keys)
    kept, start = bisect_left(earlier.parts, shared, key=lambda part: part.first_piece), shared
    last = earlier.parts[kept - 1]
    if isinstance(last.part, AssistantPart):  # a run that may go on otherwise: split again
        kept, start = kept - 1, last.first_piece
    added = split_parts(request.pieces, keys, request.tools, start)
    parts = earlier.parts.continue_from(kept, added)
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
    pieces: Sequence[Piece],
    keys: Sequence[bytes],
    tools: list[dict[str, Any]],
    first: int = 0,
) -> list[RequestPart]:
    """Return the parts of a request from piece ``first`` on, which begins one: one per input piece,
    one per run of assistant pieces.

    ``keys``: the pieces' digests; ``tools``: the request's.
    """
    parts: list[RequestPart] = []
    run: list[int] = []
    """Assistant pieces since the last input piece."""
    calls = _CallNumbers(pieces, first)
    for at in range(first, len(pieces)):
        piece = pieces[at]
        if piece.role == "assistant":
            run.append(at)
            if piece.kind == "tool_call":
                calls.add(piece.tool_id)
            continue
        if run:
            parts.append(_assistant_part(run, pieces, keys, tools))
            run = []
        call = calls.find(piece.tool_id) if piece.kind == "tool_result" else None
        parts.append(RequestPart(at, InputPart(keys[at][:CONTENT_BYTES], call)))
    if run:
        parts.append(_assistant_part(run, pieces, keys, tools))
    return parts


def _assistant_part(
    run: Sequence[int],
    pieces: Sequence[Piece],
    keys: Sequence[bytes],
    tools: list[dict[str, Any]],
) -> RequestPart:
    said = tuple(pieces[at] for at in run)
    ids = _tool_ids(said)
    shown = (keys[at][:CONTENT_BYTES] for at in run if pieces[at].kind != "thinking")
    key = b"".join(shown) or BLANK
    if len(set(ids)) < len(ids):  # what is twice decides about the class, too
        key += "\0".join(ids).encode()
    return RequestPart(run[0], AssistantPart(said, ids, tools, key))


class _CallNumbers:
    """Numbers the calls of a request as it is gone through, to tell which call a result is of."""

    def __init__(self, pieces: Sequence[Piece], first: int) -> None:
        self._pieces = pieces
        self._before = first
        """Pieces that are still to be searched, if a call is not found."""
        self._numbers: dict[str, int] = {}
        """By id, of the last call that has it."""
        self._least = self._next = 0

    def add(self, call_id: str) -> None:
        """Add the next call."""
        self._numbers[call_id] = self._next
        self._next += 1

    def find(self, result_id: str) -> int | str:
        """Return ``InputPart.call`` of a result that comes now."""
        while (
            result_id not in self._numbers
            and self._before
            and self._next - self._least < MAX_CALLS_AGO
        ):
            self._before -= 1
            piece = self._pieces[self._before]
            if piece.kind == "tool_call":
                self._least -= 1
                self._numbers.setdefault(piece.tool_id, self._least)
        number = self._numbers.get(result_id)
        ago = MAX_CALLS_AGO + 1 if number is None else self._next - number
        return result_id if ago > MAX_CALLS_AGO else ago


class PathMatcher:
    """Compares one request with many paths of a tree; each turn is compared once."""

    def __init__(self, prepared: PreparedRequest, is_issued: Callable[[str], bool]) -> None:
        """``is_issued`` tells whether an id is one of the session's."""
        self._parts = prepared.parts
        self._pieces = prepared.request.pieces
        self._states = prepared.states
        self._is_issued = is_issued
        self.rewritten_ids: dict[str, str] = {}
        """Ids that were issued, by what the program has made of them."""
        self.changes: list[Change] = []
        """Changes of form of the turns that came back so for the first time."""

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
            length, state = length + 1, self._match_turn(state, parts_of(node))
            self._states.add(node.index, length, state)
        return _conclude(state, length, self._parts, self._pieces)

    def _match_turn(self, state: PathState, turn: Sequence[Part]) -> PathState:
        if state.known is not None:
            return state
        parts, at, changed, depth = self._parts, state.at, state.changed, state.depth + 1
        for known in turn:
            came = parts[at].part if at < len(parts) else None
            echo = None if came is None else self._find_echo(known, came, at)
            if echo is not None:
                at, changed = at + 1, changed + (echo is not SAME)
            elif isinstance(came, AssistantPart) or not (
                isinstance(known, AssistantPart) and known.may_vanish
            ):
                is_last = known is turn[-1]
                return replace(state, depth=depth, at=at, known=known, is_last=is_last)
        # a turn can be continued only by input: after its answer nothing more was sampled
        if at < len(parts) and isinstance(parts[at].part, InputPart):
            return PathState(depth, at, depth, parts[at], changed=changed)
        return replace(state, depth=depth, at=at, changed=changed)

    def _find_echo(self, known: Part, came: Part, at: int) -> Echo | None:
        """Return how a part came back, which is the request's part ``at``; None if it did not."""
        if not (isinstance(known, AssistantPart) and isinstance(came, AssistantPart)):
            return SAME if known == came else None
        is_new = came.key not in known.echoes
        echo = known.find_echo(came)
        if is_new:
            self.changes += echo.changes
        if echo.kind == "edit" or known.tool_ids == came.tool_ids:
            return None if echo.kind == "edit" else echo
        pairs = zip(known.tool_ids, came.tool_ids, strict=True)
        if any(new != old and self._is_issued(new) and self._is_issued(old) for old, new in pairs):
            return None  # the same words of another turn, such as a twin's
        if not self._has_all_calls(at):
            return None
        self.rewritten_ids |= zip(came.tool_ids, known.tool_ids, strict=True)
        return echo

    def _has_all_calls(self, at: int) -> bool:
        """Return whether the calls of all results are there that come after a part."""
        for place in range(at + 1, len(self._parts)):
            part = self._parts[place].part
            if isinstance(part, AssistantPart):
                break
            if isinstance(part.call, str):
                return False
        return True


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
    changed: int = 0
    """Assistant turns that came back in another form."""


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
        return PrefixMatch(length, state.next_part, None, state.changed)
    elif came is None:
        mismatch = HistoryBreak("repeat", _REPEATED)
    else:
        place = _describe(came, pieces)
        mismatch = HistoryBreak(
            "rewrite", f"{place} was not sampled here", _message_index(came, pieces)
        )
    return PrefixMatch(state.reached, state.next_part, mismatch, state.changed)


_REPEATED = "the last turn was asked for again, with other parameters"


def _explain_mismatch(
    known: Part, came: RequestPart | None, pieces: Sequence[Piece], is_repeat: bool
) -> HistoryBreak:
    if came is None:
        if is_repeat:
            return HistoryBreak("repeat", _REPEATED)
        return HistoryBreak("rollback", "the end of the history is gone")
    place, message = _describe(came, pieces), _message_index(came, pieces)
    match known, came.part:
        case AssistantPart(), AssistantPart() as part:
            return _explain_edit(known, part, place, message)
        case AssistantPart(), InputPart():
            return HistoryBreak("rewrite", f"{place} stands where an assistant turn was", message)
    return HistoryBreak("rewrite", f"{place} is not what was sent before", message)


def _explain_edit(
    known: AssistantPart, came: AssistantPart, place: str, message: int
) -> HistoryBreak:
    is_edit = known.find_echo(came).kind == "edit" and len(set(came.tool_ids)) == len(came.tool_ids)
    if not is_edit:
        return HistoryBreak("rewrite", f"{place} came back with ids of other calls", message)
    before, after = cut_excerpts(_write_turn(known.pieces), _write_turn(came.pieces), EXCERPT)
    reason = f"{place} came back changed: {before!r} was sent, {after!r} came back"
    return HistoryBreak("edit", reason, message, before, after)


def _write_turn(pieces: Iterable[Piece]) -> str:
    """Return a turn as text, for a person."""
    return "\n".join(
        f"{piece.name}({json.dumps(piece.arguments, ensure_ascii=False)})"
        if piece.kind == "tool_call"
        else piece.text.strip()
        for piece in pieces
        if piece.kind != "thinking"
    )


def _message_index(part: RequestPart, pieces: Sequence[Piece]) -> int:
    return pieces[part.first_piece].message


def _describe(part: RequestPart, pieces: Sequence[Piece]) -> str:
    piece = pieces[part.first_piece]
    if piece.message == SYSTEM_PROMPT:
        return "the system prompt"
    return f"message {piece.message} ({piece.role} {piece.kind})"

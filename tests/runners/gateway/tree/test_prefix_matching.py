"""Prefix matching over random conversations and random edits of what the client sends back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.conversation import Piece, TurnRequest
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.tree.echoes import is_blank
from runners.gateway.tree.prefix_matching import (
    MAX_CALLS_AGO,
    MAX_ECHOES,
    AssistantPart,
    HistoryBreak,
    InputPart,
    Part,
    PathMatcher,
    PrefixMatch,
    PreparedRequest,
    RequestPart,
    answer_part,
    prepare_request,
    split_parts,
)
from runners.records.graph import TurnNode

WORDS = st.text("ab", min_size=1, max_size=2)


def has_own_ids(said: list[Piece]) -> bool:
    """Return whether each call has an id of its own, as the gateway gives them."""
    ids = [piece.tool_id for piece in said if piece.kind == "tool_call"]
    return len(set(ids)) == len(ids)


OUTSIDE = st.one_of(
    st.builds(lambda text: Piece(0, "user", "text", text), WORDS),
    st.builds(lambda text: Piece(0, "system", "text", text), WORDS),
    st.builds(
        lambda text, name, bad: Piece(0, "user", "tool_result", text, tool_id=name, is_error=bad),
        WORDS,
        WORDS,
        st.booleans(),
    ),
)
SAID = st.lists(
    st.one_of(
        st.builds(lambda text: Piece(0, "assistant", "text", text), WORDS),
        st.builds(lambda text: Piece(0, "assistant", "thinking", text), WORDS),
        st.builds(lambda name: Piece(0, "assistant", "tool_call", tool_id=name), WORDS),
    ),
    min_size=1,
    max_size=3,
).filter(lambda said: not is_blank(said) and has_own_ids(said))
TURNS = st.lists(st.tuples(st.lists(OUTSIDE, min_size=1, max_size=3), SAID), min_size=1, max_size=4)


def parts_of(pieces: list[Piece]) -> list[RequestPart]:
    return split_parts(pieces, [piece.digest() for piece in pieces], [])


Turns = list[tuple[list[Piece], list[Piece]]]


def path_of(turns: Turns) -> list[list[Part]]:
    """Return the parts of each turn: its input, then its answer."""
    parts = iter([part.part for part in parts_of(pieces_of(turns))])
    return [[next(parts) for _ in (*outside, said)] for outside, said in turns]


def pieces_of(turns: Turns) -> list[Piece]:
    """Return the pieces of a conversation."""
    return [piece for outside, said in turns for piece in (*outside, *said)]


def prepare(pieces: list[Piece], earlier: PreparedRequest | None = None) -> PreparedRequest:
    return prepare_request(TurnRequest("m", tuple(pieces), [], 9), "test", earlier)


def match_prefix(path: list[list[Part]], prepared: PreparedRequest) -> PrefixMatch:
    """Match a request with the last of these turns, each the child of the one before."""
    ids, logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
    tip: TurnNode | None = None
    for index in range(len(path)):
        tip = TurnNode(index, tip, "main", None, "main", 0, ids, ids, logprobs, ids, 0, index + 1)
    assert tip is not None
    matcher = PathMatcher(prepared, lambda _: False)
    return matcher.match(tip, lambda turn: path[turn.index])


def echo_piece(draw: st.DataObject, piece: Piece) -> list[Piece]:
    """Return what a client may make of an assistant piece when it sends it back unchanged."""
    if piece.kind == "tool_call":
        return [replace(piece, arguments={"added": None})]
    if piece.kind == "thinking":
        return draw.draw(st.sampled_from([[], [replace(piece, text=piece.text + "!")]]))
    whole, blank = replace(piece, text=f" {piece.text}\n"), replace(piece, text="\n")
    halves = [replace(piece, text=part) for part in (piece.text[:1], piece.text[1:])]
    return draw.draw(st.sampled_from([[whole], [blank, piece], halves]))


@given(TURNS, st.lists(OUTSIDE, min_size=1, max_size=3), st.data())
def test_forms_of_assistant_pieces_never_break_a_history(
    turns: Turns, news: list[Piece], data: st.DataObject
) -> None:
    echoed: list[Piece] = []
    for outside, said in turns:
        kept = [new for piece in said for new in echo_piece(data, piece)]
        echoed += [*outside, *(kept or said)]
    moved = [replace(piece, message=data.draw(st.integers(0, 9))) for piece in [*echoed, *news]]
    found = match_prefix(path_of(turns), prepare(moved))
    assert (found.depth, found.mismatch) == (len(turns), None)
    assert found.next_part is not None
    assert found.next_part.first_piece == len(echoed)


@given(TURNS, OUTSIDE, st.data())
def test_a_turn_that_is_changed_is_an_edit_at_its_place(
    turns: Turns, news: Piece, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(turns) - 1))
    outside, said = turns[at]
    added = Piece(0, "assistant", "text", "x") if data.draw(st.booleans()) else None
    changed = [*said, added or Piece(0, "assistant", "tool_call", tool_id="x", name="x")]
    edited = [*turns[:at], (outside, changed), *turns[at + 1 :]]
    found = match_prefix(path_of(turns), prepare([*pieces_of(edited), news]))
    assert found.mismatch is not None
    assert (found.depth, found.mismatch.kind) == (at, "edit")
    again = match_prefix(path_of(edited), prepare([*pieces_of(edited), news]))
    assert again.mismatch is None


@given(TURNS, st.lists(OUTSIDE, min_size=1, max_size=3), st.data())
def test_a_change_of_an_input_piece_forks_before_the_turn_that_had_it(
    turns: Turns, news: list[Piece], data: st.DataObject
) -> None:
    pieces = pieces_of(turns)
    places = [at for at, piece in enumerate(pieces) if piece.role != "assistant"]
    at = data.draw(st.sampled_from(places))
    change = data.draw(st.sampled_from(["text", "role", "gone", "doubled"]))
    old = pieces[at]
    instead: list[Piece] = {
        "text": [replace(old, text=old.text + "x")],
        "role": [replace(old, role="system" if old.role == "user" else "user")],
        "gone": [],
        "doubled": [old, replace(old, text=old.text + "x")],
    }[change]
    changed = [*pieces[:at], *instead, *pieces[at + 1 :], Piece(0, "user", "text", "end")]
    path = path_of(turns)
    found = match_prefix(path, prepare(changed))
    if found.mismatch is None:  # taking a piece out may leave the conversation before it
        assert change == "gone"
        known = [part for parts in path for part in parts]
        assert [part.part for part in parts_of(changed)][: len(known)] == known
    else:
        heard_by = [turn for turn, (outside, said) in enumerate(turns) for _ in (*outside, *said)]
        assert found.depth <= heard_by[at] or change == "gone"
        assert found.mismatch.reason
        assert (found.next_part is None) == (found.depth == 0)


@given(TURNS, st.integers(0, 3))
def test_a_conversation_cut_back_forks_where_it_was_cut(turns: Turns, kept: int) -> None:
    kept = min(kept, len(turns) - 1)
    pieces = [*pieces_of(turns[:kept]), *turns[-1][0]]
    found = match_prefix(path_of(turns), prepare(pieces))
    if kept == len(turns) - 1:
        again = HistoryBreak("repeat", "the last turn was asked for again, with other parameters")
        assert (found.depth, found.mismatch) == (kept, again)
    else:
        assert found.mismatch is not None
        assert kept <= found.depth < len(turns)
    if found.depth:
        assert found.next_part is not None
        assert isinstance(parts_of(pieces)[-1].part, type(found.next_part.part))


@given(TURNS, OUTSIDE)
def test_an_empty_turn_may_be_left_out_or_sent_back(turns: Turns, news: Piece) -> None:
    asked = Piece(0, "user", "text", "well?")
    path = [*path_of(turns), [parts_of([asked])[0].part, answer_part((), [])]]
    for echoed in ([], [Piece(0, "assistant", "thinking", "hm")]):
        sent_back = [*pieces_of(turns), asked, *echoed, news]
        found = match_prefix(path, prepare(sent_back))
        assert (found.depth, found.mismatch) == (len(path), None)
        assert found.next_part is not None
        assert found.next_part.first_piece == len(sent_back) - 1


EDITS = ["cut", "change", "double", "add", "swap"]


@given(TURNS, st.lists(st.lists(OUTSIDE | SAID.map(lambda said: said[0])), max_size=4), st.data())
def test_a_request_is_compared_the_same_after_any_earlier_one(
    turns: Turns, news: list[list[Piece]], data: st.DataObject
) -> None:
    path, pieces = path_of(turns), pieces_of(turns)
    earlier: PreparedRequest | None = None
    for added in [[], *news]:
        at = data.draw(st.integers(0, len(pieces) - 1))
        match data.draw(st.sampled_from(EDITS)):
            case "cut" if at:
                pieces = pieces[:at]
            case "change":
                other = Piece(0, "assistant", "thinking", "other")
                pieces = [*pieces[:at], data.draw(st.just(other) | OUTSIDE), *pieces[at + 1 :]]
            case "double":
                pieces = [*pieces[:at], pieces[at], *pieces[at:]]
            case "swap":
                pieces[at], pieces[-1] = pieces[-1], pieces[at]
        pieces = [*pieces, *added]
        later, alone = prepare(pieces, earlier), prepare(pieces)
        assert (later.parts, later.fingerprint) == (alone.parts, alone.fingerprint)
        depth = data.draw(st.integers(1, len(path)))
        assert match_prefix(path[:depth], later) == match_prefix(path[:depth], alone)
        earlier = later


@given(TURNS, TURNS, st.integers(0, 30), st.booleans())
def test_a_request_that_shares_its_beginning_is_prepared_as_if_alone(
    turns: Turns, more: Turns, kept: int, shared: bool
) -> None:
    first = AppendOnlyList(pieces_of(turns))
    length = min(kept, len(first))
    second = first.continue_from(length, pieces_of(more))
    pieces = second if shared else tuple(second)
    earlier = prepare_request(TurnRequest("m", first, [], 9), "test")
    match_prefix(path_of(turns), earlier)
    found = prepare_request(TurnRequest("m", pieces, [], 9), "test", earlier)
    alone = prepare_request(TurnRequest("m", tuple(second), [], 9), "test")
    assert (found.keys, found.parts) == (alone.keys, alone.parts)
    assert found.fingerprint == alone.fingerprint
    assert match_prefix(path_of(turns), found) == match_prefix(path_of(turns), alone)


class CountedPieces(tuple[Piece, ...]):
    """The pieces of an answer, which count how often they are compared."""

    compared = 0

    def __iter__(self) -> Iterator[Piece]:
        type(self).compared += 1
        return super().__iter__()


def test_a_turn_is_compared_once_in_each_form_in_which_it_comes_back() -> None:
    asked, said = Piece(0, "user", "text", "go"), Piece(0, "assistant", "text", "a")
    known = answer_part(CountedPieces([said]), [])
    path = [[parts_of([asked])[0].part, known]]
    CountedPieces.compared, seen = 0, []
    for words in ("a", " a", "b", "a", " a", "b", "a"):
        echoed = prepare([asked, replace(said, text=words), asked])
        seen.append((words, match_prefix(path, echoed).depth, CountedPieces.compared))
    first = seen[1][2]
    assert [count for _, _, count in seen[3:]].count(seen[3][2]) >= 1
    assert [depth for _, depth, _ in seen] == [1, 1, 0, 1, 1, 0, 1]
    assert seen[3][2] == seen[4][2], "what was compared is not compared again"
    assert first > seen[0][2]
    for number in range(2 * MAX_ECHOES):
        match_prefix(path, prepare([asked, replace(said, text=str(number)), asked]))
    assert len(known.echoes) == MAX_ECHOES


def test_one_id_for_two_calls_is_an_edit_though_the_same_words_were_none() -> None:
    def said(*ids: str) -> tuple[Piece, ...]:
        return tuple(Piece(0, "assistant", "tool_call", tool_id=each) for each in ids)

    known = answer_part(said("a", "b"), [])
    for ids, kind in ((("x", "y"), "same"), (("x", "x"), "edit"), (("a", "b"), "same")):
        came = parts_of(list(said(*ids)))[0].part
        assert isinstance(came, AssistantPart)
        assert known.find_echo(came).kind == kind


def test_a_result_is_of_one_of_the_last_calls_or_of_none() -> None:
    first = Piece(0, "assistant", "tool_call", tool_id="first")
    others = [Piece(0, "assistant", "tool_call", tool_id=f"{n}") for n in range(MAX_CALLS_AGO)]
    results = [Piece(1, "user", "tool_result", tool_id=each) for each in ("first", "0", "nobody")]
    found = [part.part for part in parts_of([first, *others, *results])[1:]]
    calls = [part.call for part in found if isinstance(part, InputPart)]
    assert calls == ["first", MAX_CALLS_AGO, "nobody"]

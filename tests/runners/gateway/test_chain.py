"""Which requests continue a chain, over random conversations and random edits of the echo."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.chain import Break, Part, Said, Sent, first_new, outline
from runners.gateway.conversation import Piece

WORDS = st.text("ab", min_size=1, max_size=2)
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
)
TURNS = st.lists(st.tuples(st.lists(OUTSIDE, min_size=1, max_size=3), SAID), min_size=1, max_size=4)


def sent(pieces: list[Piece]) -> list[Sent]:
    return outline(pieces, [piece.key() for piece in pieces])


def told(turns: list[tuple[list[Piece], list[Piece]]]) -> tuple[list[Part], list[Piece]]:
    """Return the history and the pieces of a conversation."""
    pieces = [piece for outside, said in turns for piece in (*outside, *said)]
    return [part.part for part in sent(pieces)], pieces


def edited(draw: st.DataObject, piece: Piece) -> list[Piece]:
    """Return what a client may make of an assistant piece when it sends it back."""
    if piece.kind == "tool_call":
        return [replace(piece, name="renamed", arguments={"added": draw.draw(st.booleans())})]
    return [] if draw.draw(st.booleans()) else [replace(piece, text=piece.text + "!")]


@given(TURNS, st.lists(OUTSIDE, min_size=1, max_size=3), st.data())
def test_edits_of_the_echo_never_break_a_chain(
    turns: list[tuple[list[Piece], list[Piece]]], news: list[Piece], data: st.DataObject
) -> None:
    history, _ = told(turns)
    echoed: list[Piece] = []
    for outside, said in turns:
        kept = [new for piece in said for new in edited(data, piece)]
        echoed += [*outside, *(kept or [Piece(0, "assistant", "text", "…")])]
    moved = [replace(piece, message=data.draw(st.integers(0, 9))) for piece in [*echoed, *news]]
    found = first_new(history, sent(moved), moved)
    assert isinstance(found, Sent), found
    assert found.first == len(echoed)


@given(TURNS, st.lists(OUTSIDE, min_size=1, max_size=3), st.data())
def test_any_change_outside_the_echo_breaks_the_chain(
    turns: list[tuple[list[Piece], list[Piece]]], news: list[Piece], data: st.DataObject
) -> None:
    history, pieces = told(turns)
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
    found = first_new(history, sent(changed), changed)
    if isinstance(found, Sent):  # taking a piece out may leave a conversation that was told before
        assert change == "gone"
        assert [part.part for part in sent(changed)][: len(history)] == history
    else:
        assert found.reason


@given(TURNS, st.integers(0, 3))
def test_a_conversation_cut_back_is_no_continuation(
    turns: list[tuple[list[Piece], list[Piece]]], kept: int
) -> None:
    history, _ = told(turns)
    _, pieces = told(turns[: min(kept, len(turns) - 1)])
    pieces = [*pieces, *turns[-1][0]]
    found = first_new(history, sent(pieces), pieces)
    if kept >= len(turns) - 1:
        assert found == Break("the last turn was asked for again, with other parameters")
    else:
        assert isinstance(found, Break)


@given(TURNS, OUTSIDE)
def test_a_turn_that_said_nothing_may_vanish_or_stay(
    turns: list[tuple[list[Piece], list[Piece]]], news: Piece
) -> None:
    history, pieces = told([*turns, ([Piece(0, "user", "text", "well?")], [])])
    history.append(Said((), may_vanish=True))
    for echoed in ([], [Piece(0, "assistant", "thinking", "hm")]):
        sent_back = [*pieces, *echoed, news]
        found = first_new(history, sent(sent_back), sent_back)
        assert isinstance(found, Sent)
        assert found.first == len(sent_back) - 1

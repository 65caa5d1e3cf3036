"""The rule for echoes: its truth table, and what programs may do to a turn in any combination."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.conversation import Piece
from runners.gateway.tree.echoes import Echo, compare_echo, is_blank
from tests.fakes.echo_table import TABLE, TOOLS, Block, Row, schema

FUNCTIONS = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in TOOLS.items()
]


def pieces_of(blocks: list[Block], ids: dict[str, str] | None = None) -> list[Piece]:
    """Return a turn's blocks as its pieces."""
    found: list[Piece] = []
    for block in blocks:
        if block["type"] == "text":
            found.append(Piece(1, "assistant", "text", block["text"]))
        elif block["type"] == "tool_use":
            tool_id = str((ids or {}).get(block["id"], block["id"]))
            found.append(
                Piece(
                    1, "assistant", "tool_call",
                    tool_id=tool_id, name=block["name"], arguments=block["input"],
                )
            )  # fmt: skip
        else:
            found.append(Piece(1, "assistant", "thinking", block.get("thinking", "")))
    return found


def compare(
    sent: list[Block], came: list[Block], tools: list[dict[str, Any]] | None = None
) -> Echo:
    return compare_echo(pieces_of(sent), pieces_of(came), FUNCTIONS if tools is None else tools)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.number}-{row.comes_back_as}")
def test_an_echo_is_classed_as_the_table_says(row: Row) -> None:
    found = compare_echo(pieces_of(row.sent), pieces_of(row.came, row.ids), FUNCTIONS)
    assert found.kind == row.kind
    assert bool(found.changes) == (row.kind == "mechanical")


def argument(value: object, **members: Any) -> list[Block]:
    """Return a turn of one call with one argument."""
    return [{"type": "tool_use", "id": "a", "name": "T", "input": {"value": value, **members}}]


def tool(value: object, **more: Any) -> list[dict[str, Any]]:
    """Return a tool whose argument has this schema."""
    parameters = {**schema({}, value=value), **more}
    return [{"type": "function", "function": {"name": "T", "parameters": parameters}}]


@pytest.mark.parametrize(
    ("sent", "came", "member", "kind"),
    [
        (True, 1, {}, "edit"),
        (1, True, {}, "edit"),
        (2**60 + 1, 2**60, {}, "same"),
        (2**50 + 1, 2**50, {}, "edit"),
        (10**400, 10**400 + 1, {}, "edit"),
        (float("nan"), None, {}, "same"),
        ("5", 5, {}, "edit"),
        (5, "5", {"type": "number"}, "edit"),
        ("0x5", 5, {"type": "number"}, "edit"),
        ("5", 5, {"type": ["integer", "null"]}, "mechanical"),
        ("5", 5, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "mechanical"),
        ("5", 5, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "edit"),
        ("5", 5, {"$ref": "#/$defs/N"}, "mechanical"),
        ("5", 5, {"$ref": "#/$defs/Circle"}, "edit"),
        ([{"n": "5 \n"}], [{"n": "5\n"}], {}, "mechanical"),
        ([{}], [{"n": 7}], {"items": {"properties": {"n": {"default": 7}}}}, "same"),
        ({"n": 7}, None, {"default": {"n": 7.0}}, "same"),
        ("a", "a ", {}, "edit"),
        (" a", "a", {}, "edit"),
        ("a\n\n", "a", {}, "edit"),
        ("a  b", "a b", {}, "edit"),
        ("a \r\nb", "a\r\nb", {}, "mechanical"),
        ("a\r\nb", "a\nb", {}, "edit"),
        ("cd /w && ls", "ls", {}, "edit"),
        ([1, 2], [1], {}, "edit"),
        ([1], {"0": 1}, {}, "edit"),
    ],
)  # fmt: skip
def test_an_argument_is_compared_as_json_by_its_schema(
    sent: object, came: object, member: dict[str, Any], kind: str
) -> None:
    definitions = {"N": {"type": "number"}, "Circle": {"$ref": "#/$defs/Circle"}}
    tools = tool(member, **{"$defs": definitions})
    assert compare(argument(sent), argument(came), tools).kind == kind


def test_defaults_are_those_of_the_tools_that_sampled_the_answer() -> None:
    default = tool({"type": "integer", "default": 7})
    sent, came = argument(None), argument(7)
    assert compare(sent, came, default).kind == "same"
    assert compare(sent, came, tool({"type": "integer", "default": 8})).kind == "edit"
    assert compare(sent, came, []).kind == "edit"


def test_every_change_that_is_mechanical_has_a_name() -> None:
    names = {
        frozenset(compare_echo(pieces_of(row.sent), pieces_of(row.came), FUNCTIONS).changes)
        for row in TABLE
        if row.kind == "mechanical"
    }
    assert names == {
        frozenset({name}) for name in ("inner_space", "trailing_space", "leading_cd", "number_text")
    }


WORDS = st.text("ab é\n\t", max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
TURNS = st.lists(
    st.builds(lambda words: Piece(0, "assistant", "text", words), WORDS)
    | st.builds(
        lambda tool_id, arguments: Piece(
            0, "assistant", "tool_call", tool_id=tool_id, name="T", arguments=arguments
        ),
        WORDS,
        st.dictionaries(WORDS, VALUES, max_size=3),
    ),
    max_size=4,
)


@given(TURNS)
def test_a_turn_is_the_same_as_itself_without_thoughts_and_blanks(turn: list[Piece]) -> None:
    shown = [Piece(0, "assistant", "thinking", "hm"), *turn, Piece(0, "assistant", "text", " \n")]
    assert compare_echo(turn, shown, []).kind == "same"
    assert compare_echo(shown, turn, []).kind == "same"


@given(TURNS, st.data())
def test_any_word_that_is_changed_is_an_edit(turn: list[Piece], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(turn)))
    word = data.draw(st.sampled_from("xyz"))
    changed = [*turn[:at], Piece(0, "assistant", "text", word), *turn[at:]]
    assert compare_echo(turn, changed, []).kind == "edit"
    assert compare_echo(changed, turn, []).kind == "edit"


@given(TURNS, TURNS)
def test_a_mechanical_change_never_adds(sent: list[Piece], came: list[Piece]) -> None:
    if compare_echo(sent, came, []).kind != "mechanical":
        return
    assert compare_echo(came, sent, []).kind == "edit"


def visible(turn: list[Piece]) -> str:
    """Return the text of a turn without blanks."""
    return "".join("".join(piece.text.split()) for piece in turn if piece.kind == "text")


@given(TURNS, TURNS)
def test_turns_of_other_texts_or_calls_are_never_the_same(
    sent: list[Piece], came: list[Piece]
) -> None:
    if compare_echo(sent, came, []).kind != "edit":
        assert visible(sent) == visible(came)
        assert is_blank(sent) == is_blank(came)
        kinds = [[piece.name for piece in turn if piece.name] for turn in (sent, came)]
        assert kinds[0] == kinds[1]


@pytest.mark.parametrize("size", [20_000])
def test_long_hostile_turns_are_compared_in_time(size: int) -> None:
    words = " " * size + "x"
    for sent, came in (
        (words, words + "y"),
        ("a " * size, "a  " * size),
        ("cd " + "/" * size, "ls"),
        ("\n" * size + "x", "x" + "\n" * size),
    ):
        compare(argument(sent), argument(came))
        block = [{"type": "text", "text": sent}], [{"type": "text", "text": came}]
        compare(*block)
    many = [Piece(0, "assistant", "text", "a") for _ in range(size)]
    assert compare_echo([Piece(0, "assistant", "text", "a" * size)], many, []).kind == "same"
    circle = tool({"anyOf": [{"$ref": "#/properties/value"}] * 100})
    assert compare(argument("5"), argument(5), circle).kind == "edit"


def test_arguments_that_are_nested_too_deep_to_compare_are_an_edit() -> None:
    deep: Any = "a"
    for _ in range(400):
        deep = {"k": deep}
    assert compare(argument(deep), argument(deep)).kind == "same"
    assert compare(argument(deep), argument({"k": deep})).kind == "edit"


@pytest.mark.parametrize("came", ["a  b", "a\n\nb", "a\tb"])
def test_blanks_inside_of_a_text_are_taken_away_and_never_added(came: str) -> None:
    sent: list[Block] = [{"type": "text", "text": "a b"}]
    assert compare(sent, [{"type": "text", "text": came}]).kind == "edit"


@pytest.mark.parametrize(("came", "kind"), [("cd /b && ls", "mechanical"), ("ls", "edit")])
def test_one_change_of_directory_is_cut_and_no_other(came: str, kind: str) -> None:
    sent, back = (
        [{"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": command}}]
        for command in ("cd /a && cd /b && ls", came)
    )
    assert compare(sent, back).kind == kind

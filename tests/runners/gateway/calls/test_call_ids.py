"""The policy's own ids of calls come back to it, and results name their tool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runners.gateway.calls.call_ids import name_calls, order_results, read_own_id
from runners.gateway.conversation import Piece, group_messages, issue_id


@pytest.mark.parametrize("own", ["functions.Bash:0", "Bash:12", "functions.Bash:007"])
def test_the_own_id_of_a_call_is_read_back_from_the_one_that_a_client_gets(own: str) -> None:
    first, second = issue_id("call_", own), issue_id("call_", own)
    assert first != second
    assert len(first) <= 40
    assert read_own_id(first, "Bash", 5) == own


def test_a_family_without_ids_gets_plain_ones() -> None:
    assert issue_id("toolu_", "").removeprefix("toolu_").isalnum()


def conversation(first: str, second: str) -> list[Piece]:
    return [
        Piece(0, "user", "text", "Go on."),
        Piece(1, "assistant", "tool_call", tool_id=first, name="Bash"),
        Piece(1, "assistant", "tool_call", tool_id=second, name="Read"),
        Piece(2, "user", "tool_result", "a", tool_id=second),
        Piece(2, "user", "tool_result", "b", tool_id=first),
    ]


def test_parallel_results_have_the_policy_s_own_ids() -> None:
    pieces = conversation(
        issue_id("call_", "functions.Bash:3"), issue_id("call_", "functions.Read:4")
    )
    named = name_calls(group_messages(pieces[3:]), pieces, 3, own_ids=True)
    assert [message["tool_call_id"] for message in named] == [
        "functions.Read:4",
        "functions.Bash:3",
    ]
    whole = name_calls(group_messages(pieces), pieces, own_ids=True)
    assert [call["id"] for call in whole[1]["tool_calls"]] == [
        "functions.Bash:3",
        "functions.Read:4",
    ]
    assert not any("name" in message for message in named)


def test_calls_that_were_not_sampled_here_are_numbered_as_kimi_does() -> None:
    pieces = conversation("toolu_1", "functions.Read:9")
    named = name_calls(group_messages(pieces), pieces, own_ids=True)
    assert [each["tool_call_id"] for each in named[2:]] == ["functions.Read:9", "functions.Bash:0"]


def test_results_name_their_tool_where_the_template_does() -> None:
    pieces = conversation("c1", "c2")
    named = name_calls(group_messages(pieces[3:]), pieces, 3, own_ids=False)
    assert [message["name"] for message in named] == ["Read", "Bash"]
    assert [message["tool_call_id"] for message in named] == ["c2", "c1"]


def test_of_calls_with_one_id_a_result_is_of_the_last_before_it() -> None:
    first, second = conversation("0", "1"), conversation("0", "1")[1:]
    second[0], second[1] = (replace(piece, name=f"{piece.name}2") for piece in second[:2])
    pieces = [*first, *second]
    names = ["Read", "Bash", "Read2", "Bash2"]
    whole = name_calls(group_messages(pieces), pieces, own_ids=False)
    assert [message["name"] for message in whole if message["role"] == "tool"] == names
    own = name_calls(group_messages(pieces), pieces, own_ids=True)
    assert [message["tool_call_id"] for message in own if message["role"] == "tool"] == [
        *("functions.Read:1", "functions.Bash:0", "functions.Read2:3", "functions.Bash2:2")
    ]
    added = name_calls(group_messages(pieces[7:]), pieces, 7, own_ids=False)
    assert [message["name"] for message in added] == names[2:]


def test_results_without_ids_stand_in_the_order_of_their_calls() -> None:
    pieces = [*conversation("c1", "c2"), Piece(2, "user", "text", "And?")]
    ordered = order_results(group_messages(pieces[3:]), pieces, 3)
    assert [message["content"] for message in ordered] == ["b", "a", "And?"]

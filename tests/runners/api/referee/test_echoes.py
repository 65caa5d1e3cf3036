"""The rule of echoes, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.referee.conversation import Message, PolicyCall, Tool
from agentrl.referee.echoes import classify, is_blank

TOOLS = (
    Tool(
        "Bash",
        "",
        {
            "command": {"type": "string"},
            "limit": {"type": "integer"},
            "all": {"type": "boolean", "default": False},
        },
    ),
)


def said(text: str | tuple[str, ...] = "", thought: str = "", **arguments: Any) -> Message:
    texts = (text,) if isinstance(text, str) else text
    calls = (PolicyCall("Bash", arguments, "a"),) if arguments else ()
    return Message("assistant", texts, calls, thought)


def two(first: str, second: str) -> Message:
    calls = (
        PolicyCall("Bash", {"command": first}, "a"),
        PolicyCall("Bash", {"command": second}, "b"),
    )
    return Message("assistant", (), calls)


ROWS = [
    ("the same", said("So.", command="ls"), said("So.", command="ls"), "same"),
    ("a thought dropped", said("So.", "Hm."), said("So."), "same"),
    ("text trimmed", said("  So.  \nand so \n"), said("So.\nand so"), "same"),
    ("text in two blocks", said("So.\nand so"), said(("So.", "and so")), "same"),
    ("a blank block left out", said("", command="ls"), said((), command="ls"), "same"),
    ("blanks folded", said("So   it is."), said("So it is."), "mechanical"),
    ("blanks put in", said("So it is."), said("So   it is."), "edit"),
    ("1.0 is 1", said(limit=1.0, command="ls"), said(command="ls", limit=1), "same"),
    ("true is not 1", said(limit=1), said(limit=True), "edit"),
    ("a default added", said(command="ls"), said(command="ls", all=False), "same"),
    ("another value added", said(command="ls"), said(command="ls", all=True), "edit"),
    ("null left out", said(command="ls", limit=None), said(command="ls"), "same"),
    ("trailing blanks cut", said(command="a  \nb \n"), said(command="a\nb\n"), "mechanical"),
    ("leading blanks cut", said(command="  a"), said(command="a"), "edit"),
    ("a cd cut", said(command="cd /w && ls"), said(command="ls"), "mechanical"),
    ("more than a cd cut", said(command="cd /w && ls -a"), said(command="ls"), "edit"),
    ("a computed cd cut", said(command="cd $(x) && ls"), said(command="ls"), "edit"),
    ("a number of a text", said(limit="5"), said(limit=5), "mechanical"),
    ("another number of a text", said(limit="5"), said(limit=6), "edit"),
    ("other ids", two("a", "b"), two("a", "b"), "same"),
    ("calls swapped", two("a", "b"), two("b", "a"), "edit"),
    ("a call dropped", two("a", "b"), said(command="a"), "edit"),
    ("a command replaced", said(command="rm"), said(command="ls"), "edit"),
    ("text redacted", said("SECRET"), said("[redacted]"), "edit"),
    ("text shortened", said("So it is."), said("So."), "edit"),
    ("text added", said("So."), said("So. And so."), "edit"),
    ("text before a call dropped", said("So.", command="ls"), said(command="ls"), "edit"),
    ("a call dropped, text kept", said("So.", command="ls"), said("So."), "edit"),
]


@pytest.mark.parametrize(("answer", "sent", "wanted"), [row[1:] for row in ROWS], ids=str)
def test_an_echo_has_its_class(answer: Message, sent: Message, wanted: str) -> None:
    assert classify(answer, sent, TOOLS) == wanted


def test_a_renamed_call_is_an_edit() -> None:
    renamed = Message("assistant", (), (PolicyCall("invalid", {"command": "ls"}),))
    assert classify(said((), command="ls"), renamed, TOOLS) == "edit"


def test_a_message_without_words_and_calls_is_blank() -> None:
    assert is_blank(said(" \n"))
    assert not is_blank(said("", command="ls"))
    assert not is_blank(Message("user"))

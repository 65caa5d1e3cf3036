"""The 32 echoes by which the rule for them is told: what was sent, what came back, and its class.

Turns are in the blocks of Anthropic's API.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from runners.gateway.tree.echoes import EchoKind

Block = dict[str, Any]


def schema(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return a JSON schema of an object."""
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required)}


STRING, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS: dict[str, dict[str, Any]] = {
    "Bash": schema({"command": STRING}, timeout=NUMBER),
    "Edit": schema(
        {"file_path": STRING, "new_string": STRING},
        replace_all={"type": "boolean", "default": False},
    ),
    "Write": schema({"file_path": STRING, "content": STRING}),
    "Read": schema({"file_path": STRING}, limit={"type": "integer"}),
}
"""Schemas of the tools, by name."""


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def thought(words: str) -> Block:
    return {"type": "thinking", "thinking": words, "signature": ""}


def call(name: str, id: str = "a", **arguments: Any) -> Block:
    """Return a call; the id stands for the one that was issued, if a row does not change it."""
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


@dataclass(frozen=True)
class Row:
    """One echo."""

    number: int
    comes_back_as: str
    kind: EchoKind
    sent: list[Block]
    came: list[Block]
    ids: dict[str, str] = field(default_factory=dict)
    """Ids that come back otherwise, by those in ``sent``; ``strip``: without punctuation."""


LOOK, SECRET = text("I look."), text("The key is SECRET. I go on.")
BASH = call("Bash", command="cd /w && ls")
EDIT = call("Edit", file_path="a.py", new_string="x")
TWO = [call("Bash", "a", command="ls"), call("Bash", "b", command="pwd")]
READ = call("Read", file_path="a.py", limit="5")

TABLE = [
    Row(1, "same bytes", "same", [LOOK, BASH], [LOOK, BASH]),
    Row(2, "thought dropped", "same", [thought("Hm."), LOOK, BASH], [LOOK, BASH]),
    Row(
        3,
        "thought redacted, signed",
        "same",
        [thought("Hm."), LOOK],
        [{"type": "redacted_thinking", "data": "c2ln"}, LOOK],
    ),
    Row(4, "text trimmed", "same", [text("\n I look. \nAnd go.\n\n")], [text("I look.\nAnd go.")]),
    Row(5, "blank block left out, null for empty", "same", [text("\n\n"), BASH], [BASH]),
    Row(
        6,
        "text in two blocks",
        "same",
        [text("I look.\nThen I act."), BASH],
        [text("I look."), text("Then I act."), BASH],
    ),
    Row(7, "inner space folded", "mechanical", [text("I  look \n\n now.")], [text("I look now.")]),
    Row(
        8,
        "key order, 1.0 as 1",
        "same",
        [call("Bash", command="ls", timeout=1.0)],
        [call("Bash", timeout=1, command="ls")],
    ),
    Row(
        9,
        "other escapes",
        "same",
        [call("Bash", command="echo é/")],
        [call("Bash", command="echo é/")],
    ),
    Row(
        10,
        "schema default added",
        "same",
        [EDIT],
        [call("Edit", **EDIT["input"], replace_all=False)],
    ),
    Row(11, "other value added", "edit", [EDIT], [call("Edit", **EDIT["input"], replace_all=True)]),
    Row(
        12,
        "trailing space of content cut",
        "mechanical",
        [call("Write", file_path="a.py", content="x = 1  \ny = 2\t\n")],
        [call("Write", file_path="a.py", content="x = 1\ny = 2\n")],
    ),
    Row(13, "leading cd cut", "mechanical", [LOOK, BASH], [LOOK, call("Bash", command="ls")]),
    Row(
        14,
        "more than the cd cut",
        "edit",
        [call("Bash", command="cd /w && make && ls")],
        [call("Bash", command="ls")],
    ),
    Row(
        15,
        "cd of a command cut",
        "edit",
        [call("Bash", command="cd $(rm -rf /) && ls")],
        [call("Bash", command="ls")],
    ),
    Row(
        16,
        "text as number by schema",
        "mechanical",
        [READ],
        [call("Read", file_path="a.py", limit=5)],
    ),
    Row(17, "another number", "edit", [READ], [call("Read", file_path="a.py", limit=6)]),
    Row(18, "ids without punctuation", "same", [LOOK, BASH], [LOOK, BASH], {"a": "strip"}),
    Row(19, "ids numbered anew", "same", TWO, TWO, {"a": "call_1", "b": "call_2"}),
    Row(20, "two calls swapped", "edit", TWO, [TWO[1], TWO[0]]),
    Row(21, "one id for two calls", "edit", TWO, TWO, {"a": "one", "b": "one"}),
    Row(22, "one of two calls dropped", "edit", TWO, [TWO[0]]),
    Row(
        23,
        "command replaced",
        "edit",
        [call("Bash", command="rm -rf /")],
        [call("Bash", command="echo BLOCKED")],
    ),
    Row(
        24,
        "tool renamed",
        "edit",
        [call("Gone", command="ls")],
        [call("invalid", tool="Gone", error="no such tool")],
    ),
    Row(25, "text redacted", "edit", [SECRET], [text("The key is [redacted]. I go on.")]),
    Row(26, "text shortened", "edit", [SECRET], [text("The key is SECRET.")]),
    Row(27, "text appended to", "edit", [LOOK], [text("I look. (checked)")]),
    Row(28, "text before a call dropped", "edit", [LOOK, BASH], [BASH]),
    Row(29, "call dropped, text kept", "edit", [LOOK, BASH], [LOOK]),
    Row(30, "few-shot at a known place", "edit", [LOOK], [text("Like this: 42.")]),
    Row(31, "empty turn left out", "same", [thought("Nothing to say.")], []),
    Row(
        32,
        "null for absent",
        "same",
        [call("Bash", command="ls")],
        [call("Bash", command="ls", timeout=None)],
    ),
]


def escaped(arguments: dict[str, Any]) -> str:
    """Return arguments as JSON with other escapes than the gateway's."""
    return json.dumps(arguments, ensure_ascii=True, indent=1).replace("/", "\\/")

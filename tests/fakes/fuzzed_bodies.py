"""Request bodies of an agent that goes on with its conversation, and of one that does anything but.

Every item of a conversation keeps the bytes in which it was written once, as real programs write
them, until something is done to it: so two bodies share what a client would repeat.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

GENERATE, COUNT = "/v1beta/models/{model}:generateContent", "/v1beta/models/{model}:countTokens"
CONVERSATION = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    GENERATE: "contents",
    COUNT: "contents",
}
TEXTS = (
    *("", "hi", "a\nb", 'say "x"', "é", "日本", "😀", "]}", '{"a": [1, 2]}', "\\u00e9", "\x7f"),
    *("x" * 300, "},{", '",', "\\", '\\"', "[" * 40, "x-anthropic-billing-header: 1"),
)
ODD = (
    b"NaN",
    b"1e999",
    b"-0.0",
    b"12345678901234567890123",
    b'"\\ud800"',
    b"01",
    b"[[[[1]]]]",
    b"",
)
GARBAGE = (
    *(
        b",",
        b"]",
        b"}",
        b"{",
        b"[",
        b'"',
        b"\\",
        b"\x00",
        b"\xff",
        b" ",
        b"\n",
        b"\xc2\xa0",
        b"/**/",
    ),
    *(b'"messages":[],', b'"input":"x",', b'"\\u006dessages":[],', b"[" * 150),
)
SPACES = ("", " ", "\n ", "\t", "\r\n")


def write(value: object, rng: random.Random) -> bytes:
    """Write a JSON value in one of many ways: order of keys, escapes, blanks."""
    if isinstance(value, dict) and rng.random() < 0.3:
        keys = list(value)
        rng.shuffle(keys)
        value = {key: value[key] for key in keys}
    style = rng.choice([(",", ":"), (", ", ": "), (" ,\n", "\t:")])
    ascii_only, indent = rng.random() < 0.5, rng.choice([None, None, None, 1])
    text = json.dumps(value, ensure_ascii=ascii_only, separators=style, indent=indent)
    return text.encode()


def make_turn(path: str, number: int, text: str, odd: object) -> list[dict[str, Any]]:
    """Return the items of a turn that calls a tool, and of its result."""
    name, arguments = f"call_{number}", {"command": text, "n": odd}
    if path == "/v1/responses":
        call: dict[str, Any] = {"type": "function_call", "call_id": name, "name": "Bash"}
        result = {"type": "function_call_output", "call_id": name, "output": text}
        return [
            {"type": "reasoning", "summary": []},
            {**call, "arguments": json.dumps(arguments)},
            result,
        ]
    if path in (GENERATE, COUNT):
        parts = [{"functionCall": {"name": "Bash", "args": arguments}}, {"text": text}]
        response = {"name": "Bash", "response": {"output": text}}
        return [
            {"role": "model", "parts": parts},
            *[{"role": "user", "parts": [{"functionResponse": response}]}] * (number % 3),
        ]
    if path == "/v1/chat/completions":
        function = {"name": "Bash", "arguments": json.dumps(arguments)}
        calls = [{"id": name, "type": "function", "function": function}]
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": name, "content": text},
        ]
    call = {"type": "tool_use", "id": name, "name": "Bash", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": name, "content": text}
    return [
        {"role": "assistant", "content": [{"type": "text", "text": text}, call]},
        {"role": "user", "content": [result | {"cache_control": {"type": "ephemeral"}}]},
    ]


def make_message(path: str, role: str, text: str) -> dict[str, Any]:
    """Return an item that is a message."""
    if path in (GENERATE, COUNT):
        return {"role": role, "parts": [{"text": text}]}
    return {"role": role, "content": text}


@dataclass
class FuzzedAgent:
    """One conversation of one endpoint; ``step`` changes it, ``body`` writes it."""

    rng: random.Random
    path: str
    items: list[Any] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)
    before: dict[str, bytes] = field(default_factory=dict)
    """Members before the conversation, as JSON."""
    after: dict[str, bytes] = field(default_factory=dict)
    calls: int = 0
    edges: tuple[str, str, str] = ("", "", "")
    """Blanks after the opening bracket, around commas, before the closing one."""

    def __post_init__(self) -> None:
        """Begin the conversation."""
        self.before["model"] = b'"m"'
        if self.path == "/v1/messages":
            self.after["max_tokens"] = b"9"
        self.change_envelope()
        self.append(make_message(self.path, "user", self.text()))

    def text(self) -> str:
        """Return some text."""
        return "".join(self.rng.choice(TEXTS) for _ in range(self.rng.randint(1, 3)))

    def append(self, *items: Any) -> None:
        """Add items."""
        self.items += items
        self.written += [write(item, self.rng) for item in items]

    def go_on(self) -> None:
        """Add a turn and what answers it, without the mark for the cache of the last item."""
        self.forget_mark()
        self.calls += 1
        self.append(*make_turn(self.path, self.calls, self.text(), self.rng.choice([1, 0.5, None])))

    def forget_mark(self) -> None:
        """Write the last item without its mark for a cache."""
        content = self.items[-1].get("content") if isinstance(self.items[-1], dict) else None
        if isinstance(content, list) and any(part.pop("cache_control", 0) for part in content):
            self.written[-1] = write(self.items[-1], self.rng)

    def change_envelope(self) -> None:
        """Change, add or move members outside of the conversation."""
        schema = {"type": "object", "n": self.rng.random()}
        tools: list[dict[str, Any]] = [{"name": "Bash", "input_schema": schema}]
        if not self.path.startswith("/v1/messages"):
            function = {"name": "Bash", "parameters": schema}
            tools = [{"type": "function", "function": function, **function}]
        if self.path in (GENERATE, COUNT):
            tools = [{"functionDeclarations": [{"name": "Bash"}]}]
        name, value = self.rng.choice(
            [
                ("tools", tools),
                ("metadata", {"user_id": self.text()}),
                ("temperature", self.rng.random()),
                ("system", [{"type": "text", "text": self.text()}]),
                ("instructions", self.text()),
                ("stream", True),
                ("generationConfig", {"temperature": self.rng.random()}),
                ("unknown", [self.text()]),
            ]
        )
        for members in (self.before, self.after):
            members.pop(name, None)
        self.rng.choice([self.before, self.after])[name] = write(value, self.rng)

    def edit(self) -> None:
        """Replace an item, swap two, write one or all anew, or cut the end."""
        at = self.rng.randrange(len(self.items))
        match self.rng.randrange(6):
            case 0:
                self.items[at] = make_message(self.path, self.rng.choice(["user", "system"]), "x")
                self.written[at] = write(self.items[at], self.rng)
            case 1:
                other = self.rng.randrange(len(self.items))
                for each in (self.items, self.written):
                    each[at], each[other] = each[other], each[at]
            case 2:
                self.written[at] = write(self.items[at], self.rng)
            case 3:
                self.written = [write(item, self.rng) for item in self.items]
            case 4:
                del self.items[at + 1 :], self.written[at + 1 :]
            case _:
                twice = b'{"role":"assistant","content":"other",'
                self.written[at] = twice + write(self.items[at], self.rng).lstrip(b"{ \n\t")
                self.edges = (*self.rng.choices(SPACES, k=3),)  # type: ignore[assignment]

    def body(self) -> bytes:
        """Return the body."""
        opening, comma, closing = (blank.encode() for blank in self.edges)
        listed = opening + (comma + b"," + comma).join(self.written) + closing
        name = CONVERSATION[self.path].encode()
        before = b"".join(b'"%s":%s,' % (key.encode(), value) for key, value in self.before.items())
        after = b"".join(b',"%s":%s' % (key.encode(), value) for key, value in self.after.items())
        return b'{%s"%s":[%s]%s}' % (before, name, listed, after)


def damage(body: bytes, rng: random.Random) -> bytes:
    """Change bytes anywhere: most of what comes out is no request."""
    at = rng.randrange(len(body) + 1)
    ways: list[Callable[[], bytes]] = [
        lambda: body[:at],
        lambda: body[:at] + rng.choice(GARBAGE) + body[at:],
        lambda: body[:at] + rng.choice(ODD) + body[at + rng.randint(0, 4) :],
        lambda: body.replace(b'"x"', rng.choice(ODD), 1),
        lambda: body.replace(b"[", b"[" + rng.choice(GARBAGE), 1),
        lambda: body + rng.choice(GARBAGE),
        lambda: body[:at] + body[at + 1 :],
    ]
    return rng.choice(ways)()

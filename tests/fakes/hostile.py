"""Texts and exceptions that break code which shows or stores them carelessly."""

from __future__ import annotations

import io
import re

from rich.console import Console, RenderableType

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Characters of foreign text that no terminal should get."""

TEXTS = {
    "braces": "{} {0} {name} {{",
    "percent": "100% %s %d %(x)s %",
    "closing_markup": "[/] [/red] [/bold]",
    "markup": "[red]x[/red] [link=http://x]y[/link]",
    "emoji_code": ":smile: :x:",
    "no_utf8": b"caf\xe9 \xff\xfe".decode("utf-8", "surrogateescape"),
    "lone_surrogates": "\ud800 \udfff",
    "escape_sequence": "\x1b[2J\x1b]0;title\x07\x9b31m",
    "carriage_return": "done\rfailed\r\nnext",
    "nul": "a\x00b",
    "right_to_left": "\u202egnp.exe\u2066 1\u200f/\u200e2\u061c",
    "empty": "",
    "blank": " \t\n",
    "lines": "one\ntwo\u2028three",
    "wide": "日本語 👩‍💻 é",
    "quotes": "\"'`$(x)\\",
    "long": "x" * 100_000,
}


class Unreadable(Exception):
    """An exception whose ``str`` and ``repr`` raise."""

    def __str__(self) -> str:
        raise RuntimeError(TEXTS["closing_markup"] + TEXTS["no_utf8"])

    __repr__ = __str__


def exceptions() -> dict[str, Exception]:
    """Return an exception for each text, and one without a text."""
    return {name: RuntimeError(text) for name, text in TEXTS.items()} | {"none": Unreadable()}


def shown(renderable: RenderableType) -> str:
    """Return what agentrl's consoles print to a terminal of strict UTF-8."""
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    Console(file=stream, width=200, markup=False, emoji=False).print(renderable)
    stream.seek(0)
    return stream.read()

"""The texts of a rollout that a search reads: messages, tool calls, patches, findings of tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from runners.records.text import loads, make_printable

FIELDS = ("said", "tools", "patch", "tests")
"""Columns of the search index: what was said; calls of tools and their results; the patch; the
verdict with its log. ``patch:word`` searches one alone.
"""
LENGTH = 1 << 18
"""Characters of a field that are searched: the policy decides how many there are."""
_AROUND = 60
"""Characters before and after a hit that are shown."""


def read_turn_texts(request: str, reply: str) -> dict[str, str]:
    """Return the fields of a turn from its stored JSON: what it added, not its history."""
    said, tools = list[str](), list[str]()
    messages = loads(request).get("messages") or []
    for message in (*messages, loads(reply)):
        if isinstance(message, dict):
            own = tools if message.get("role") == "tool" else said
            own.extend(_texts(message.get("reasoning_content")))
            own.extend(_texts(message.get("content")))
            for call in message.get("tool_calls") or ():
                tools.extend(_texts(call.get("function") if isinstance(call, dict) else call))
    return {"said": "\n".join(said)[:LENGTH], "tools": "\n".join(tools)[:LENGTH]}


def read_rollout_texts(
    session_id: str, task: str, patch: str, verdict: str | None
) -> dict[str, str]:
    """Return the fields of a finished attempt; its name and its task's are said, too."""
    findings = loads(verdict) if verdict else None
    return {
        "said": f"{session_id}\n{task}",
        "patch": patch[:LENGTH],
        "tests": "\n".join(_texts(findings))[:LENGTH],
    }


def split_words(search: str) -> list[tuple[str, str]]:
    """Return (field or "", words) for each part of a search.

    >>> split_words('KeyError patch:"return x"')
    [('', 'KeyError'), ('patch', 'return x')]
    """
    found = re.findall(r'(?:(\w+):(?=\S))?(?:"([^"]*)"?|(\S+))', search)
    parts = []
    for field, quoted, word in found:
        if field and field not in FIELDS:
            word, field = f"{field}:{word or quoted}", ""
            quoted = ""
        parts.append((field, quoted or word))
    return [part for part in parts if re.search(r"\w", part[1])]


def match_expression(search: str) -> str:
    """Return a search as FTS5 reads it: every part occurs, the last word of each may go on.

    Each part is a string there, so that no character of it is an operator. Empty: there is no word.
    """
    parts = []
    for field, words in split_words(search):
        text = words.replace('"', '""')
        parts.append(f'{field} : "{text}" *' if field else f'"{text}" *')
    return " AND ".join(parts)


def cut_out(texts: Mapping[str, str], search: str) -> tuple[str, str]:
    """Return the field in which a part of the search occurs first, and the text around it.

    Where only the index sees that they are alike (an accent), it is the beginning of the texts.
    """
    for field, words in split_words(search):
        pattern = re.compile(r"\W+".join(map(re.escape, re.findall(r"\w+", words))), re.IGNORECASE)
        for name in (field,) if field else FIELDS:
            text = texts.get(name, "")
            if found := pattern.search(text):
                start, end = max(0, found.start() - _AROUND), found.end() + _AROUND
                cut = text[start:end]
                shown = ("…" if start else "") + cut + ("…" if end < len(text) else "")
                return name, make_printable(" ".join(shown.split()))
    first = next((name for name in FIELDS if texts.get(name)), "")
    return first, make_printable(" ".join(texts.get(first, "")[: 2 * _AROUND].split()))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, without the keys of dictionaries."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)

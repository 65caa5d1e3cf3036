"""Calls of Gemma 4: ``call:NAME{…}``, like JSON, with bare keys and strings between marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runners.gateway.calls.attempts import (
    MISSING_CLOSER,
    MISSING_OPENER,
    SEVERAL_CALLS,
    CallAttempt,
    malformed,
    read_call,
)
from runners.gateway.calls.values import NotReadable, Tools, read_json, skip_space

_ESCAPE = '<|"|>'
_CALL_HEAD = re.compile(r"\s*call:\s*(?P<name>[^{<]{0,256}?)\s*(?=\{)")
_BARE = re.compile(r"[^,}\]\[{]*")
_KEY = re.compile(r"[^:,{}\[\]]*")
MAX_DEPTH = 64


class GemmaArguments:
    """Reads Gemma 4's arguments: like JSON, with bare keys and strings between marks."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_value(self, at: int, depth: int = 0) -> tuple[object, int]:
        """Return the value that begins at a place, and its end; raises NotReadable."""
        text = self._text
        at = skip_space(text, at)
        if depth > MAX_DEPTH:
            raise NotReadable("nested too deep")
        if text.startswith(_ESCAPE, at):
            return self._read_string(at)
        if text.startswith("{", at):
            members: dict[str, object] = {}
            at = skip_space(text, at + 1)
            while not text.startswith("}", at):
                key, at = self._read_key(at)
                members[key], at = self.read_value(self._expect(at, ":"), depth + 1)
                at = self._next(at, "}")
            return members, at + 1
        if text.startswith("[", at):
            items: list[object] = []
            at = skip_space(text, at + 1)
            while not text.startswith("]", at):
                item, at = self.read_value(at, depth + 1)
                items.append(item)
                at = self._next(at, "]")
            return items, at + 1
        found = _BARE.match(text, at)
        assert found is not None  # it matches nothing at all, too
        word = found[0].strip()
        if not word or "<" in word:
            raise NotReadable("no value")
        try:
            return read_json(word), found.end()
        except NotReadable:
            if word.lstrip("+-").lower() in ("nan", "inf", "infinity") or word[:1].isdigit():
                raise
            return word, found.end()

    def _read_string(self, at: int) -> tuple[str, int]:
        start = at + len(_ESCAPE)
        end = self._text.find(_ESCAPE, start)
        if end < 0:
            raise NotReadable("a string has no end")
        return self._text[start:end], end + len(_ESCAPE)

    def _read_key(self, at: int) -> tuple[str, int]:
        if self._text.startswith(_ESCAPE, at):
            return self._read_string(at)
        found = _KEY.match(self._text, at)
        assert found is not None  # it matches nothing at all, too
        return found[0].strip(), found.end()

    def _expect(self, at: int, word: str) -> int:
        at = skip_space(self._text, at)
        if not self._text.startswith(word, at):
            raise NotReadable(f"no {word}")
        return at + 1

    def _next(self, at: int, closer: str) -> int:
        """Return the place of the next member, or of the closing bracket."""
        at = skip_space(self._text, at)
        if self._text.startswith(closer, at):
            return at
        return skip_space(self._text, self._expect(at, ","))


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """Calls of Gemma 4: ``call:NAME{…}`` between two tags."""

    opener: str = "<|tool_call>"
    closer: str = "<tool_call|>"

    def find(self, text: str, start: int, tools: Tools) -> Iterator[CallAttempt]:
        """Yield the attempts from a place on."""
        tags = re.compile(f"{re.escape(self.opener)}|{re.escape(self.closer)}")
        reader = GemmaArguments(text)
        at = start
        while (found := tags.search(text, at)) is not None:
            begins, at, recovered = found.start(), found.end(), ""
            if found[0] == self.closer:
                begins = text.rfind("call:", start, begins)
                if begins < 0:
                    yield malformed(text, found.start(), at, "stray")
                    start = at
                    continue
                at, recovered = begins, MISSING_OPENER
            while True:
                head = _CALL_HEAD.match(text, at)
                arguments: object = None
                end = at
                if head is not None:
                    try:
                        arguments, end = reader.read_value(head.end())
                    except NotReadable:
                        head = None
                end = skip_space(text, end)
                closed = text.startswith(self.closer, end)
                several = head is not None and text.startswith("call:", end)
                opens = text.startswith(self.opener, end)
                if head is None or not (closed or several or opens):
                    next_tag = tags.search(text, max(at, found.end()))
                    end = len(text) if next_tag is None else next_tag.start()
                    if next_tag is not None and next_tag[0] == self.closer:
                        end = next_tag.end()
                    status = "unclosed" if next_tag is None else "malformed_structure"
                    yield malformed(text, begins, end, status)
                    at = end
                    break
                at = end + len(self.closer) * closed
                if several:
                    recovered = recovered or SEVERAL_CALLS
                elif opens:
                    recovered = recovered or MISSING_CLOSER
                yield read_call(
                    text, begins, at, head["name"], arguments, tools, recovered=recovered
                )
                begins = at
                if not several:
                    break
                recovered = SEVERAL_CALLS
            start = at

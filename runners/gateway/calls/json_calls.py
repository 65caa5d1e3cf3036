"""Calls whose arguments are JSON, in a frame of the family's own: Qwen 3, Kimi, DeepSeek, Llama.

A frame ends where its JSON ends: tags inside of a string are the string's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runners.gateway.calls.attempts import (
    MISSING_CLOSER,
    MISSING_OPENER,
    OTHER_KEY,
    SEVERAL_CALLS,
    CallAttempt,
    malformed,
    read_call,
)
from runners.gateway.calls.values import NotReadable, Tools, is_quoted, read_json_at, skip_space

_OBJECT = re.compile(r"(?:\A|(?<=\n))[ \t]*\{\s*\"(?:name|function|arguments|parameters)\"\s*:")
_NAMED = re.compile(r"\s*\{\s*\"name\"\s*:\s*\"([^\"]{1,128})\"")
_FENCE = re.compile(r"\s*(?P<name>[^\n`{<]{0,256})\s*(?:```(?:json)?\s*)?")
MAX_HEAD = 160
"""Characters before a tag that are looked at: an id."""

_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "params")
_OTHER_KEYS = frozenset({"name", "function", "id", "type", "index", *_ARGUMENT_KEYS})


def _read_object(value: Any, key: str) -> tuple[str, Any, str]:
    """Return name and arguments of a call that is one JSON object, and how it was recovered.

    ``key``: the family's own key of the arguments. They are None if they cannot be told.
    """
    if not isinstance(value, dict):
        return "", None, ""
    recovered = ""
    if isinstance(inner := value.get("function"), dict) and "name" not in value:
        value, recovered = inner, OTHER_KEY
    elif isinstance(inner, str) and "name" not in value:
        value, recovered = {**value, "name": inner}, OTHER_KEY
    name = value.get("name")
    if not isinstance(name, str):
        return "", None, ""
    arguments = value.get(key, {})
    if key not in value or arguments == {}:
        for other in _ARGUMENT_KEYS:
            if other != key and value.get(other):
                return name, value[other], OTHER_KEY
        if not value.keys() <= _OTHER_KEYS:
            return name, None, ""
    return name, arguments, recovered


@dataclass(frozen=True, slots=True)
class TaggedJson:
    """Calls as one JSON object each, between two tags (Hermes' format: Qwen 2.5 and 3)."""

    opener: str = "<tool_call>"
    closer: str = "</tool_call>"
    key: str = "arguments"

    def find(self, text: str, start: int, tools: Tools) -> Iterator[CallAttempt]:
        """Yield the attempts from a place on."""
        tags = re.compile(f"{re.escape(self.opener)}|{re.escape(self.closer)}")
        at = start
        while (found := tags.search(text, at)) is not None:
            if is_quoted(text, *found.span()):
                at = found.end()
                continue
            if found[0] == self.opener:
                attempts = self._read_block(text, found.start(), found.end(), tags, tools)
            else:
                attempts = [self._read_unopened(text, start, found, tools)]
            yield from attempts
            at = start = attempts[-1].end

    def _read_block(
        self, text: str, start: int, at: int, tags: re.Pattern[str], tools: Tools
    ) -> list[CallAttempt]:
        """Return the calls after an opening tag, which ends at ``at``."""
        values: list[tuple[Any, int]] = []
        while True:
            try:
                value, at = read_json_at(text, at)
            except NotReadable:
                break
            several = isinstance(value, list) and bool(value) and not values
            values += [(each, at) for each in (value if several else [value])]
            at = skip_space(text, at)
            if text.startswith((self.closer, self.opener), at) or at == len(text):
                break
            at += text.startswith(",", at)
        closed = text.startswith(self.closer, at)
        if not values or not (closed or text.startswith(self.opener, at)):
            found = tags.search(text, at)
            end = len(text) if found is None else found.start()
            if found is not None and found[0] == self.closer:
                end = found.end()
            status = "unclosed" if found is None else "invalid_json"
            return [malformed(text, start, end, status)]
        attempts: list[CallAttempt] = []
        for value, end in values:
            name, arguments, recovered = _read_object(value, self.key)
            if len(values) > 1:
                recovered = recovered or SEVERAL_CALLS
            elif not closed:
                recovered = recovered or MISSING_CLOSER
            end = at + len(self.closer) * closed if (value, end) == values[-1] else end
            read = read_call(text, start, end, name, arguments, tools, recovered=recovered)
            attempts.append(read)
            start = max(start, min(end, at))
        return attempts

    def _read_unopened(
        self, text: str, start: int, closer: re.Match[str], tools: Tools
    ) -> CallAttempt:
        """Return the call that ends with a closing tag whose opening one is missing."""
        found = _OBJECT.search(text, start, closer.start())
        if found is None:
            return malformed(text, closer.start(), closer.end(), "stray")
        try:
            value, end = read_json_at(text, found.start())
        except NotReadable:
            return malformed(text, found.start(), closer.end(), "invalid_json")
        if skip_space(text, end) != closer.start():
            return malformed(text, found.start(), closer.end(), "invalid_json")
        name, arguments, _ = _read_object(value, self.key)
        return read_call(
            text, found.start(), closer.end(), name, arguments, tools, recovered=MISSING_OPENER
        )


@dataclass(frozen=True, slots=True)
class FramedJson:
    """Calls whose name stands before their arguments: Kimi, DeepSeek V3. Three tags make a call;
    all of an answer stand in a section.
    """

    opener: str
    """Opens the section."""
    begin: str
    middle: str
    end: str
    head: re.Pattern[str]
    """The text between ``begin`` and ``middle``; group ``name``, and group ``id`` if the family has
    ids of its own.
    """
    fenced: bool = False
    """DeepSeek: the name stands after ``middle``, the arguments in a block of Markdown."""

    def find(self, text: str, start: int, tools: Tools) -> Iterator[CallAttempt]:
        """Yield the attempts from a place on."""
        tags = re.compile("|".join(map(re.escape, (self.begin, self.middle, self.end))))
        recovered = "" if text.find(self.opener, start) >= 0 else MISSING_OPENER
        at = start
        while (found := tags.search(text, at)) is not None:
            place, at = found.span()
            if found[0] == self.begin:
                middle = tags.search(text, at)
                if middle is None or middle[0] != self.middle:
                    stop = len(text) if middle is None else middle.start()
                    attempt = malformed(text, place, stop, "malformed_structure")
                else:
                    head = text[at : middle.start()]
                    attempt = self._read(text, place, head, middle.end(), tags, tools, recovered)
            elif found[0] == self.middle:
                before = text[max(start, place - MAX_HEAD) : place]
                head = before[before.rfind("\n") + 1 :].rpartition(">")[2]
                begins = place - len(head)
                attempt = self._read(text, begins, head, at, tags, tools, MISSING_OPENER)
            else:
                attempt = malformed(text, place, at, "stray")
            yield attempt
            at = start = attempt.end

    def _read(
        self,
        text: str,
        start: int,
        head: str,
        at: int,
        tags: re.Pattern[str],
        tools: Tools,
        recovered: str,
    ) -> CallAttempt:
        """Return the call whose arguments begin at a place."""
        named = self.head.fullmatch(head)
        name = named["name"] if named else ""
        if self.fenced:
            fence = _FENCE.match(text, at)
            assert fence is not None  # it matches nothing at all, too
            at = fence.end()
            if fence["name"]:
                name = fence["name"].rstrip()
            elif name:  # as later versions of the family write it
                recovered = recovered or OTHER_KEY
        arguments: Any = {}
        if not (self.fenced and text.startswith(self.end, skip_space(text, at))):
            try:
                arguments, at = read_json_at(text, at)
            except NotReadable:
                return self._skip(text, start, at, tags)
        at = skip_space(text, at)
        if self.fenced and text.startswith("```", at):
            at = skip_space(text, at + 3)
        if text.startswith(self.end, at):
            end = at + len(self.end)
        elif at < len(text) and text.startswith("<", at):  # the next call's tag, or the section's
            end, recovered = at, recovered or MISSING_CLOSER
        else:
            return self._skip(text, start, at, tags)
        own_id = head.strip() if named and "id" in named.groupdict() else ""
        return read_call(
            text, start, end, name, arguments, tools, recovered=recovered, own_id=own_id
        )

    def _skip(self, text: str, start: int, at: int, tags: re.Pattern[str]) -> CallAttempt:
        found = tags.search(text, at)
        end = len(text) if found is None else found.start()
        if found is not None and found[0] == self.end:
            end = found.end()
        return malformed(text, start, end, "unclosed" if found is None else "invalid_json")


@dataclass(frozen=True, slots=True)
class BareJson:
    """A call as one JSON object without tags, which ends the answer (Llama 3)."""

    opener: str = "<|python_tag|>"
    key: str = "parameters"

    def find(self, text: str, start: int, tools: Tools) -> Iterator[CallAttempt]:
        """Yield the attempt that a text ends with, if it does."""
        tagged = text.find(self.opener, start)
        begins = tagged if tagged >= 0 else start
        at = tagged + len(self.opener) if tagged >= 0 else start
        found = _OBJECT.search(text, at)
        if found is None:
            if tagged >= 0:
                yield malformed(text, tagged, len(text), "malformed_structure")
            return
        before = text[at : found.start()].strip()
        recovered = ""
        if before:
            begins, recovered = found.start(), MISSING_OPENER
        try:
            value, end = read_json_at(text, found.start())
        except NotReadable:
            named = _NAMED.match(text, found.start())
            if tagged >= 0 or (named is not None and named[1] in tools.schemas):
                yield malformed(text, begins, len(text), "invalid_json")
            return
        name, arguments, other = _read_object(value, self.key)
        if other == OTHER_KEY and "arguments" in value:
            other = ""  # the template's own first words
        is_call = name in tools.schemas or (name and value.keys() & set(_ARGUMENT_KEYS))
        if not is_call and tagged < 0:
            return  # JSON that answers a question
        if skip_space(text, end) != len(text):
            yield malformed(text, begins, len(text), "malformed_structure")
            return
        yield read_call(
            text, begins, len(text), name, arguments, tools, recovered=recovered or other
        )

"""Calls whose arguments stand between tags, one by one and without quotes: Qwen's and MiniMax's
XML, GLM's keys and values, DeepSeek's DSML.

A value can contain any of these tags. So a closing tag closes only if what comes next can come
next: the next argument, or the end of the call. If a tag is missing or garbled, the value ends at
the first place where it can end, unless the text reads as a whole call without that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from runners.gateway.calls.attempts import (
    GARBLED_TAG,
    MISSING_CLOSER,
    MISSING_OPENER,
    SEVERAL_CALLS,
    STRAY_TAG,
    CallAttempt,
    malformed,
    read_call,
)
from runners.gateway.calls.values import NotReadable, Tools, is_blank, is_quoted, read_json

MAX_STEPS = 16
"""Tags that are looked at, per tag of the text: a value is read twice only if a tag is missing."""

MAX_INDENT = 160
"""Characters before a tag that are looked at: white space, or the name of a tool."""

_BARE_NAME = re.compile(r"(?:\A|(?<=\n))[ \t]*([\w./:-]{1,128})\s*\Z")


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: str
    """``open`` and ``close`` of the calls' wrapper, ``call`` and ``end`` of a call, ``key`` (opens
    a value), ``value_end``, and ``garbled``, one that resembles the last.
    """
    start: int
    end: int
    name: str = ""
    """Of a call, or of an argument."""
    form: str = ""
    """The attribute that tells how a value is written, if the format has one."""


@dataclass(frozen=True, slots=True)
class TagFormat:
    """The tags of one format, and how its template writes a value."""

    opener: str
    tags: re.Pattern[str]
    """One group per kind of tag; groups ``name``, ``argument`` and ``form`` inside of them."""
    newlines: bool = False
    """Each value has a line break before and after it that is not part of it."""
    python: bool = False
    """The template writes ``True`` and ``None``."""
    wraps_several: bool = False
    """A wrapper can hold several calls."""
    bare_name: bool = False
    """The call's tag is the wrapper's, its name the text behind it."""

    def find(self, text: str, start: int, tools: Tools) -> Iterator[CallAttempt]:
        """Yield the attempts from a place on."""
        return _Reader(self, text, start, tools).read()


@dataclass(slots=True)
class _Call:
    """A call as far as it has been read."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    recovered: str = ""

    def add_fault(self, fault: str) -> None:
        self.fault = self.fault or fault

    def recover(self, kind: str) -> None:
        self.recovered = self.recovered or kind


class _Reader:
    """Reads the calls of one text, tag by tag."""

    def __init__(self, tag_format: TagFormat, text: str, start: int, tools: Tools) -> None:
        self._format = tag_format
        self._text = text
        self._tools = tools
        self._start = start
        self._tags = list(self._find_tags())
        self._at = 0
        """Index of the next tag."""
        self._steps = MAX_STEPS * (len(self._tags) + 1)

    def _find_tags(self) -> Iterator[_Tag]:
        text = self._text
        for found in self._format.tags.finditer(text, self._start):
            start, end = found.span()
            if is_quoted(text, start, end):
                continue
            groups = found.groupdict()
            name = groups.get("name") or groups.get("argument") or ""
            yield _Tag(found.lastgroup or "", start, end, name, groups.get("form") or "")

    def _kind(self, index: int) -> str:
        """Return the kind of a tag; after the last one ``""``."""
        return self._tags[index].kind if index < len(self._tags) else ""

    def _follows(self, index: int) -> str:
        """Return the kind of the tag that comes right after another one, white space left out;
        ``""`` at the end of the text, ``text`` if something else comes.
        """
        start = self._tags[index].end
        after = index + 1 < len(self._tags)
        end = self._tags[index + 1].start if after else len(self._text)
        return self._kind(index + 1) if is_blank(self._text, start, end) else "text"

    # --- from one call to the next ----------------------------------------------------------------

    def read(self) -> Iterator[CallAttempt]:
        done = self._start
        """End of the last attempt."""
        while self._at < len(self._tags):
            index, tag = self._at, self._tags[self._at]
            if tag.kind == "open":
                attempts = list(self._read_wrapper(index))
            elif tag.kind == "call" and (self._format.bare_name or self._begins_line(tag, done)):
                lone = not self._format.bare_name
                attempts = [self._read_call(index, tag.start, MISSING_OPENER if lone else "")]
            elif tag.kind == "key" and (named := self._find_bare_name(tag, done)):
                call = _Call(named[0], recovered=MISSING_OPENER)
                self._at -= 1
                attempts = [self._read_arguments(call, named[1], tag.start)]
            elif tag.kind in ("close", "end"):
                attempts = [malformed(self._text, tag.start, tag.end, "stray")]
                self._at += 1
            else:
                self._at += 1
                continue
            yield from attempts
            if attempts:
                done = attempts[-1].end

    def _begins_line(self, tag: _Tag, done: int) -> bool:
        first = max(done, tag.start - MAX_INDENT)
        line = self._text.rfind("\n", first, tag.start)
        if line < 0 and first > done:
            return False
        return is_blank(self._text, max(line + 1, first), tag.start)

    def _find_bare_name(self, tag: _Tag, done: int) -> tuple[str, int] | None:
        """Return the name of an offered tool that stands before the first argument, and its place,
        where the tag before it is missing.
        """
        if not self._format.bare_name:
            return None
        found = _BARE_NAME.search(self._text, max(done, tag.start - MAX_INDENT), tag.start)
        if found is None or found[1] not in self._tools.schemas:
            return None
        return found[1], found.start(1)

    def _read_wrapper(self, index: int) -> Iterator[CallAttempt]:
        """Read the calls after the tag that opens a wrapper."""
        start = self._tags[index].start
        if self._follows(index) != "call":
            yield self._skip_wrapper(index, "malformed_structure")
            return
        self._at = index + 1
        recovered = ""
        while True:
            attempt = self._read_call(self._at, start, recovered)
            last = self._at - 1
            follows = self._follows(last) if last >= 0 else ""
            if self._kind(self._at) == "close" and follows == "close":
                self._at += 1
                yield self._extend(attempt, self._tags[self._at - 1].end)
                return
            if follows == "call":
                yield attempt
                recovered = "" if self._format.wraps_several else SEVERAL_CALLS
                start = self._tags[self._at].start
                continue
            if attempt.call.status != "ok":
                yield attempt
            elif follows == "" or self._is_cut(attempt.end):
                yield malformed(self._text, attempt.start, len(self._text), "unclosed")
            else:
                yield read_call(
                    self._text,
                    attempt.start,
                    attempt.end,
                    attempt.call.name or "",
                    attempt.call.arguments,
                    self._tools,
                    recovered=attempt.call.recovered or MISSING_CLOSER,
                )
            return

    def _is_cut(self, end: int) -> bool:
        """Return whether a text ends in the middle of the tag that closes a wrapper."""
        closer = f"</{self._format.opener[1:]}"
        return len(self._text) - end < 2 * len(closer) and closer.startswith(
            self._text[end:].strip()
        )

    def _extend(self, attempt: CallAttempt, end: int) -> CallAttempt:
        call = attempt.call
        if call.status != "ok":
            return malformed(self._text, attempt.start, end, call.status)
        return read_call(
            self._text,
            attempt.start,
            end,
            call.name or "",
            call.arguments,
            self._tools,
            recovered=call.recovered,
        )

    def _skip_wrapper(self, index: int, status: str) -> CallAttempt:
        """Return what a wrapper without a call holds, up to its end or the next wrapper."""
        at = index + 1
        ends = ("open", "call", "end") if self._format.bare_name else ("open", "close")
        while at < len(self._tags) and self._kind(at) not in ends:
            at += 1
        self._at = at
        end = len(self._text)
        if at < len(self._tags):
            tag = self._tags[at]
            closes = tag.kind in ("close", "end")
            end = tag.end if closes else tag.start
            self._at += closes
        return malformed(self._text, self._tags[index].start, end, status)

    # --- one call ---------------------------------------------------------------------------------

    def _read_call(self, index: int, start: int, recovered: str) -> CallAttempt:
        """Read the call whose tag is at an index; what is before it from ``start`` on belongs to
        it.
        """
        tag = self._tags[index]
        self._at = index
        name = tag.name.strip()
        if name not in self._tools.schemas and name.strip("\"'") in self._tools.schemas:
            name, recovered = name.strip("\"'"), recovered or GARBLED_TAG
        return self._read_arguments(_Call(name, recovered=recovered), start, tag.end)

    def _read_arguments(self, call: _Call, start: int, done: int) -> CallAttempt:
        """Read the arguments of a call from the tag after ``self._at`` on, and its end."""
        text = self._text
        self._at += 1
        while True:
            if self._at >= len(self._tags) or self._steps < 0:
                self._at = len(self._tags)
                return malformed(text, start, len(text), "unclosed")
            tag = self._tags[self._at]
            between = is_blank(text, done, tag.start)
            if tag.kind in ("value_end", "garbled"):
                call.recover(STRAY_TAG)
            elif tag.kind == "key":
                end = self._read_argument(call, tag)
                if end is None:
                    return malformed(text, start, len(text), "unclosed")
                done = end
                if not between:
                    call.add_fault("malformed_structure")
                continue
            if not between:
                call.add_fault("malformed_structure")
            if tag.kind == "end":
                self._at += 1
                return self._close(call, start, tag.end)
            if tag.kind in ("call", "open", "close"):
                call.recover(MISSING_CLOSER)
                if not call.arguments:  # nothing says that it was to have none
                    call.add_fault("unclosed")
                return self._close(call, start, done if between else tag.start)
            done = tag.end
            self._at += 1

    def _close(self, call: _Call, start: int, end: int) -> CallAttempt:
        if call.fault:
            return malformed(self._text, start, end, call.fault)
        return read_call(
            self._text, start, end, call.name, call.arguments, self._tools, recovered=call.recovered
        )

    def _read_argument(self, call: _Call, tag: _Tag) -> int | None:
        """Read a value, up to and with the tag that closes it; return its end, None if it has
        none.
        """
        found = self._find_value_end(call, tag)
        if found is None:
            self._at = len(self._tags)
            return None
        end, done, self._at, recovered = found
        value = self._text[tag.end : end]
        if self._format.newlines:
            value = value[value.startswith("\n") :]
            value = value[: len(value) - value.endswith("\n")]
        if recovered:
            call.recover(recovered)
        key = tag.name
        if key != key.strip() and not self._tools.declares(call.name, key):
            key = key.strip()
        if key in call.arguments:
            call.add_fault("malformed_structure")
        try:
            call.arguments[key] = self._read_value(call.name, key, value, tag.form)
        except NotReadable:
            call.add_fault("invalid_json")
        return done

    def _read_value(self, tool: str, key: str, value: str, form: str) -> Any:
        match form:
            case "true":
                return value
            case "false":
                return read_json(value)
        return self._tools.read_value(tool, key, value, python=self._format.python)

    def _find_value_end(self, call: _Call, opened: _Tag) -> tuple[int, int, int, str] | None:
        """Return where a value ends, where its closing tag does, the index of the next tag to read,
        and how it was recovered; None if it has no end.

        Reads on to the first tag that ends the value for certain. A tag that can only end it if
        another one is missing is kept until then.
        """
        fallback: tuple[int, int, int, str] | None = None
        depth = 0
        """Calls inside of the value that are open: a document about calls, say."""
        at = self._at + 1
        while at < len(self._tags):
            self._steps -= 1
            if self._steps < 0:
                return None
            tag, follows = self._tags[at], self._follows(at)
            match tag.kind:
                case "value_end" | "garbled" if depth == 0:
                    certain = follows in ("key", "end")
                    if certain and tag.kind == "value_end":
                        return tag.start, tag.end, at + 1, ""
                    if tag.kind == "value_end":
                        fallback = fallback or (tag.start, tag.end, at + 1, MISSING_CLOSER)
                    elif certain or follows in ("close", "open", "call", ""):
                        fallback = fallback or (tag.start, tag.end, at + 1, GARBLED_TAG)
                case "end" | "close":
                    if depth and tag.kind == "end":
                        depth -= 1
                    elif not depth:
                        fallback = fallback or (tag.start, tag.start, at, MISSING_CLOSER)
                case "key" if depth == 0 and self._begins_argument(call, opened, tag):
                    return fallback or (tag.start, tag.start, at, MISSING_CLOSER)
                case "call" if self._begins_call(at):
                    if fallback:
                        return fallback
                    depth += 1
            at += 1
        return fallback

    def _begins_argument(self, call: _Call, opened: _Tag, tag: _Tag) -> bool:
        key = tag.name.strip()
        if key == opened.name.strip() or key in call.arguments:
            return False
        if not self._tools.declares(call.name, key):
            return False
        before = self._text[tag.start - 1 : tag.start]
        return before == "\n" if self._format.newlines else True

    def _begins_call(self, at: int) -> bool:
        tag = self._tags[at]
        if tag.name.strip() not in self._tools.schemas:
            return False
        if self._format.bare_name:
            return True
        opened = at > 0 and self._kind(at - 1) == "open" and self._follows(at - 1) == "call"
        return opened or self._follows(at - 1) == "call"

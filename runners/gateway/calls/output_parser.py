"""Parse an answer: its thought, its text, and its calls.

Text stays as the policy wrote it, but for the line breaks that the family's template writes between
the parts. Work is linear in the length of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from runners.gateway.calls.attempts import CallFinder, find_attempts, malformed
from runners.gateway.calls.values import Tools
from runners.records.tokenizer import ParsedResponse, ToolCall


class OutputParser(Protocol):
    """Parses the answers of one family."""

    @property
    def kept_stops(self) -> Sequence[str]:
        """Tokens that end a turn and must be seen; the others are cut off."""
        ...

    def parse(self, text: str, prompt_end: str, tools: Tools) -> ParsedResponse:
        """Return an answer; ``prompt_end`` is the text of the last tokens of its prompt."""
        ...


@dataclass(frozen=True, slots=True)
class PlainText:
    """Answers without parts: another parser reads them."""

    kept_stops: Sequence[str] = ()

    def parse(self, text: str, prompt_end: str, tools: Tools) -> ParsedResponse:
        """Return the text."""
        return ParsedResponse(text)


@dataclass(frozen=True, slots=True)
class TaggedOutput:
    """Answers of a thought between two tags, then text, then calls."""

    calls: CallFinder
    think: tuple[str, str] = ("<think>", "</think>")
    """Opening and closing tag of a thought."""
    think_newline: bool = False
    """A thought has a line break before and after it that is not part of it."""
    after_think: int = 0
    """Line breaks between thought and text."""
    before_calls: int = 0
    """Line breaks between text and calls."""
    at_end: int = 0
    """Line breaks after the text of an answer without calls."""
    thinks_again: bool = False
    """Text can be followed by another thought, and a first thought need not be opened (GLM)."""
    call_ends_thought: bool = True
    """A call ends a thought that is not closed, as in vLLM and SGLang for this family."""
    section: tuple[str, ...] = ()
    """Tags around all calls of an answer, which no call includes."""
    kept_stops: Sequence[str] = ()

    def parse(self, text: str, prompt_end: str, tools: Tools) -> ParsedResponse:
        """Return an answer; see ``OutputParser``."""
        thoughts: list[str] = []
        start = self._read_thought(text, prompt_end, thoughts, tools)
        parts: list[str] = []
        calls: list[ToolCall] = []
        at, thought_end = start, start
        for attempt in find_attempts(self.calls, text, start, tools):
            if attempt.start < thought_end:
                continue  # drafted in a later thought
            if self.thinks_again:
                thought_end = self._end_of_thoughts(text, at, attempt.start)
                if thought_end > attempt.start:
                    continue
            parts.append(text[at : attempt.start])
            calls.append(attempt.call)
            at = attempt.end
        parts.append(text[at:])
        content = self._join(parts, thoughts, calls, after_thought=start > 0 or bool(thoughts))
        thought = "".join(thoughts)
        return ParsedResponse(content, None if thought.isspace() else thought or None, calls)

    # --- thoughts ---------------------------------------------------------------------------------

    def _read_thought(self, text: str, prompt_end: str, thoughts: list[str], tools: Tools) -> int:
        """Add the thought that an answer begins with, and return where the text begins."""
        opener, closer = self.think
        lead = len(text) - len(text.lstrip())
        opened = prompt_end.rstrip().endswith(opener.rstrip())
        start = 0
        if text.startswith(opener, lead):
            opened, start = True, lead + len(opener)
        elif self.thinks_again and not opened and not prompt_end.rstrip().endswith(closer):
            first = text.find(closer)
            opened = (
                first >= 0
                and text.find(opener, 0, first) < 0
                and not (text.find(self.calls.opener, 0, first) >= 0)
            )
        if not opened:
            closed = text.startswith(closer, lead)  # a thought that the prompt has closed already
            return lead + len(closer) if closed else 0
        end = text.find(closer, start)
        if end >= 0:
            thoughts.append(self._trim_thought(text[start:end].replace(opener, "")))
            return end + len(closer)
        end = self._first_call(text, start, tools)
        thoughts.append(self._trim_thought(text[start:end].replace(opener, "")))
        return end

    def _first_call(self, text: str, start: int, tools: Tools) -> int:
        """Return where the calls begin that end an unclosed thought; the end of the text if there
        are none, or if they are drafts: more than calls comes after the first.
        """
        first = text.find(self.calls.opener, start) if self.call_ends_thought else -1
        if first < 0:
            return len(text)
        at = first
        for attempt in find_attempts(self.calls, text, first, tools):
            if self._without_section(text[at : attempt.start]).strip():
                return len(text)
            at = attempt.end
        return first if not self._without_section(text[at:]).strip() else len(text)

    def _trim_thought(self, thought: str) -> str:
        if not self.think_newline:
            return thought
        thought = thought[thought.startswith("\n") :]
        return thought[: len(thought) - thought.endswith("\n")]

    def _end_of_thoughts(self, text: str, at: int, until: int) -> int:
        """Return where the last thought ends that begins in a part of the text; ``at`` if none."""
        opener, closer = self.think
        while (opened := text.find(opener, at, until)) >= 0:
            closed = text.find(closer, opened)
            at = len(text) if closed < 0 else closed + len(closer)
        return at

    # --- text -------------------------------------------------------------------------------------

    def _join(
        self,
        parts: list[str],
        thoughts: list[str],
        calls: list[ToolCall],
        *,
        after_thought: bool,
    ) -> str:
        """Return the text of an answer: what stands before, between and after its calls."""
        if self.thinks_again:
            parts = ["".join(self._split_thoughts(part, thoughts)) for part in parts]
        if self.section:
            lone = any(tag in part for part in parts for tag in self.section) and not calls
            if lone:
                raw = "".join(parts)
                at = min(raw.find(tag) for tag in self.section if tag in raw)
                calls.append(malformed(raw, at, len(raw), "malformed_structure").call)
                parts = [raw[:at]]
            parts = [self._without_section(part) for part in parts]
        first = parts[0]
        if after_thought:
            first = _drop_newlines(first, self.after_think)
        if calls:
            first = _drop_newlines(first[::-1], self.before_calls)[::-1]
            parts = [first, *parts[1:]]
            return "".join(part for part in parts if part and not part.isspace())
        first = _drop_newlines(first[::-1], self.at_end)[::-1]
        return "" if first.isspace() else first

    def _split_thoughts(self, part: str, thoughts: list[str]) -> Iterator[str]:
        """Yield the text of a part without later thoughts, which are added, and without closing
        tags that close nothing.
        """
        opener, closer = self.think
        at = 0
        while (opened := part.find(opener, at)) >= 0:
            yield part[at:opened].replace(closer, "")
            closed = part.find(closer, opened)
            thoughts.append(part[opened + len(opener) : closed if closed >= 0 else len(part)])
            at = len(part) if closed < 0 else closed + len(closer)
        yield part[at:].replace(closer, "")

    def _without_section(self, text: str) -> str:
        if not self.section:
            return text
        first, *rest = re.split("|".join(map(re.escape, self.section)), text)
        return "".join([first, *(part for part in rest if not part.isspace())])


def _drop_newlines(text: str, most: int) -> str:
    """Return a text without so many of the line breaks that it begins with."""
    dropped = 0
    while dropped < most and text.startswith("\n", dropped):
        dropped += 1
    return text[dropped:]

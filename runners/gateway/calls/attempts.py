"""Attempts at a call that parsers find in an answer, each with its place in the text.

Every attempt has one of three ends: the call; a recovered call, whose mark-up was wrong in a way
that leaves no doubt; a malformed attempt, which the agent gets as the text that it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from runners.gateway.calls.values import Tools
from runners.records.tokenizer import ToolCall

MISSING_OPENER = "missing_opener"
MISSING_CLOSER = "missing_closer"
GARBLED_TAG = "garbled_tag"
STRAY_TAG = "stray_tag"
SEVERAL_CALLS = "several_calls"
OTHER_KEY = "other_key"
"""Kinds of recovery, as they are counted."""

MAX_FAULTS = 100
"""Malformed attempts of an answer that are told apart; the rest is one. The place of an error in
JSON takes as long to find as the text before it.
"""


@dataclass(frozen=True, slots=True)
class CallAttempt:
    """An attempt at a call, in ``text[start:end]``."""

    start: int
    end: int
    call: ToolCall


class CallFinder(Protocol):
    """The calls of a family's format. Its work is linear in the text, and it never raises."""

    @property
    def opener(self) -> str:
        """The tag that begins calls; it ends a thought that is not closed."""
        ...

    def find(self, text: str, start: int, tools: Tools) -> Iterable[CallAttempt]:
        """Yield the attempts from a place on, in order; none overlaps another."""
        ...


def read_call(
    text: str,
    start: int,
    end: int,
    name: str,
    arguments: Any,
    tools: Tools,
    *,
    recovered: str = "",
    own_id: str = "",
) -> CallAttempt:
    """Return a call that was read; malformed if it has no name or its arguments are no object."""
    raw = text[start:end]
    if not tools.accepts_name(name):
        return malformed(text, start, end, "bad_name")
    if not isinstance(arguments, dict):
        return malformed(text, start, end, "invalid_json")
    return CallAttempt(start, end, ToolCall(raw, name, arguments, "ok", own_id, recovered))


def malformed(text: str, start: int, end: int, status: str) -> CallAttempt:
    """Return a malformed attempt."""
    return CallAttempt(start, end, ToolCall(text[start:end].strip(), status=status))


def find_attempts(finder: CallFinder, text: str, start: int, tools: Tools) -> Iterator[CallAttempt]:
    """Yield the attempts of a text from a place on; closing tags alone (status ``stray``) that come
    right after another attempt become part of it.
    """
    last: CallAttempt | None = None
    faults = 0
    for attempt in finder.find(text, start, tools):
        faults += attempt.call.status != "ok"
        if faults > MAX_FAULTS:
            attempt = malformed(text, attempt.start, len(text), "too_many")
        if last is not None and attempt.call.status == "stray" and _touch(text, last, attempt):
            call = last.call
            if call.status == "ok":
                call = replace(call, recovered=call.recovered or STRAY_TAG)
            else:
                call = replace(call, raw=text[last.start : attempt.end])
            last = CallAttempt(last.start, attempt.end, call)
            continue
        if last is not None:
            yield last
        last = attempt
        if attempt.end == len(text):
            break
    if last is not None:
        yield last


def _touch(text: str, last: CallAttempt, attempt: CallAttempt) -> bool:
    return not text[last.end : attempt.start].strip()

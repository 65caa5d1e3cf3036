"""Answers in segments, each with a header that says what it is: gpt-oss' Harmony, and Inkling."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runners.gateway.calls.attempts import MAX_FAULTS, CallAttempt, malformed, read_call
from runners.gateway.calls.values import NotReadable, Tools, read_json_at, skip_space
from runners.records.tokenizer import ParsedResponse, ToolCall

_RECIPIENT = re.compile(r"to=([^\s<]{1,256})")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w{0,32})")
_HARMONY_END = re.compile(r"<\|(?:end|call|start|return)\|>")
_START, _MESSAGE, _CALL, _RETURN = "<|start|>", "<|message|>", "<|call|>", "<|return|>"


def _too_many(calls: list[ToolCall]) -> bool:
    return len([call for call in calls if call.status != "ok"]) >= MAX_FAULTS


@dataclass(frozen=True, slots=True)
class Harmony:
    """gpt-oss: a turn is a list of messages; each names its channel, and whom it is for."""

    kept_stops: tuple[str, ...] = (_CALL,)
    """Ends a call, and the turn: the parser must see it."""

    def parse(self, text: str, prompt_end: str, tools: Tools) -> ParsedResponse:
        """Return an answer; see ``OutputParser``."""
        head = prompt_end.rpartition(_START)[2] if _START in prompt_end else ""
        if not text.startswith(_START):
            text = _START + head + text
        thoughts: list[str] = []
        contents: list[str] = []
        calls: list[ToolCall] = []
        at = 0
        while at < len(text):
            if _too_many(calls):
                calls.append(malformed(text, at, len(text), "too_many").call)
                break
            body = text.find(_MESSAGE, at)
            if body < 0:
                rest = text[at:].removeprefix(_START)
                if "to=functions." in rest:
                    calls.append(ToolCall(rest, status="unclosed"))
                elif rest.strip() not in ("", "assistant"):
                    contents.append(rest)
                break
            header, body = text[at:body], body + len(_MESSAGE)
            recipient = _RECIPIENT.search(header)
            if recipient is not None and recipient[1].startswith("functions."):
                attempt = _read_harmony_call(
                    text, at, body, recipient[1].removeprefix("functions."), tools
                )
                calls.append(attempt.call)
                at = attempt.end
                continue
            end = _HARMONY_END.search(text, body)
            part = text[body : end.start() if end else len(text)]
            channel = _CHANNEL.search(header)
            if channel is not None and channel[1] == "analysis":
                thoughts.append(part)
            else:
                contents.append(part)
            at = len(text) if end is None else end.start() if end[0] == _START else end.end()
        thought = "".join(thoughts)
        return ParsedResponse("".join(contents), thought or None, calls)


def _read_harmony_call(text: str, start: int, body: int, name: str, tools: Tools) -> CallAttempt:
    try:
        arguments, at = read_json_at(text, body)
    except NotReadable:
        arguments, at = None, body
    else:
        at = skip_space(text, at)
    end = _HARMONY_END.search(text, at)
    stop = len(text) if end is None else end.start() if end[0] == _START else end.end()
    if end is None or end[0] == _RETURN or arguments is None or end.start() != at:
        return malformed(text, start, stop, "unclosed" if end is None else "invalid_json")
    return read_call(text, start, stop, name, arguments, tools)


_INVOKE, _INVOKE_TEXT = "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"
_TEXT, _THINKING = "<|content_text|>", "<|content_thinking|>"
_MODEL, _ENDED = "<|message_model|>", "<|end_message|>"
_INKLING_BODY = re.compile("|".join(map(re.escape, (_INVOKE, _INVOKE_TEXT, _ENDED))))


@dataclass(frozen=True, slots=True)
class Inkling:
    """Inkling: segments of text, thought, and calls, each with its own mark."""

    kept_stops: tuple[str, ...] = ()

    def parse(self, text: str, prompt_end: str, tools: Tools) -> ParsedResponse:
        """Return an answer; see ``OutputParser``."""
        if prompt_end.endswith(_THINKING):
            text = _THINKING + text
        thoughts: list[str] = []
        contents: list[str] = []
        calls: list[ToolCall] = []
        for kind, part in self._split(text, tools, calls):
            (thoughts if kind == _THINKING else contents).append(part)
        thought = "".join(thoughts)
        return ParsedResponse("".join(contents), thought or None, calls)

    def _split(self, text: str, tools: Tools, calls: list[ToolCall]) -> Iterator[tuple[str, str]]:
        """Yield the segments of text, with their marks; add the calls."""
        at = 0
        while at < len(text):
            if _too_many(calls):
                calls.append(malformed(text, at, len(text), "too_many").call)
                return
            at += len(_MODEL) * text.startswith(_MODEL, at)
            mark = next((each for each in (_TEXT, _THINKING) if text.startswith(each, at)), "")
            body = at + len(mark)
            found = _INKLING_BODY.search(text, body)
            # a call ends a thought that is not closed, as its own tag does elsewhere
            if found is None or found[0] == _ENDED or mark == _TEXT:
                end = text.find(_ENDED, body)
                yield mark, text[body : end if end >= 0 else len(text)]
                at = len(text) if end < 0 else end + len(_ENDED)
                continue
            if mark:
                yield mark, text[body : found.start()]
            attempt = self._read(text, body, found, tools)
            calls.append(attempt.call)
            at = attempt.end

    def _read(self, text: str, at: int, found: re.Match[str], tools: Tools) -> CallAttempt:
        try:
            value, end = read_json_at(text, found.end())
        except NotReadable:
            value, end = None, found.end()
        stop = text.find(_ENDED, end)
        after = len(text) if stop < 0 else stop + len(_ENDED)
        if stop < 0 or not isinstance(value, dict) or skip_space(text, end) != stop:
            return malformed(text, at, after, "unclosed" if stop < 0 else "invalid_json")
        name = value.get("name")
        if not isinstance(name, str) or not name:
            name = text[at : found.start()].strip()
        return read_call(text, at, after, name, value.get("args", {}), tools)

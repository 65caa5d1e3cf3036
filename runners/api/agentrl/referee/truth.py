"""Derive what a perfect gateway would do, from the requests and the answers alone.

It knows no template: which texts a prompt has to hold, in which order, and which words it may not
hold; and into how many chains the turns have to fall.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.referee.conversation import (
    WORD,
    Message,
    PolicyCall,
    ProgramRequest,
    ProgramTurn,
    Sampling,
    Tool,
    find_words,
    leaves,
    readable,
)
from agentrl.referee.echoes import classify, is_blank, matches
from agentrl.referee.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that the program got, with what the policy sampled for it."""

    message: Message
    tools: tuple[Tool, ...]
    sampled: str

    @property
    def words(self) -> set[str]:
        """Its words."""
        return find_words(self.sampled)


# --- what a prompt holds --------------------------------------------------------------------------


def check_prompt(
    request: ProgramRequest, earlier: Sequence[Given], prompt: Sequence[int], vocabulary: Vocabulary
) -> Iterator[str]:
    """Yield what is wrong with the prompt of a request; nothing, if the policy sees what was sent.

    ``earlier``: the answers that the program has got before.
    """
    text = vocabulary.decode(prompt)
    for name, part in [("the system prompt", request.system), *_tool_names(request)]:
        if part.strip() not in text:
            yield f"{name} is not in the prompt: {_short(part)}"
    allowed = request.words()
    for given in earlier:
        if is_blank(given.message):  # programs leave it out, the policy has said it
            allowed |= find_words(given.sampled)
    at = 0
    for number, message in enumerate(_in_order(request.history)):
        ends = [_find(text, at, message)]
        if message.role == "assistant":
            words = message.words()
            for given in earlier:
                if words and not words & given.words:
                    continue
                if classify(given.message, message, given.tools) != "edit":
                    allowed |= find_words(given.sampled)
                    whole = text.find(given.sampled, at)
                    ends.append(whole + len(given.sampled) if whole >= 0 else None)
        if message.role == "tool" and ends[0] is None:
            ends = [_find(text, _start_of_results(request.history, number, text, at), message)]
        if (end := max((end for end in ends if end is not None), default=None)) is None:
            yield f"message {number} ({message.role}) is not in the prompt as it was sent: " + (
                _short(message.text or json.dumps([call.arguments for call in message.calls]))
            )
        else:
            at = max(at, end)
    seen = find_words(text)
    thoughts = find_words(*(given.message.thought for given in earlier))
    known = {word for given in earlier for word in find_words(given.sampled)}
    tools = find_words(*(text for tool in request.tools for text in (tool.name, tool.description)))
    for word in sorted(seen - allowed - thoughts - tools):
        whose = "an answer of the policy" if word in known else "another request"
        yield f"the prompt has {word}, of {whose}, which this request does not have"
    yield from _find_forged(request, prompt, vocabulary)


def _tool_names(request: ProgramRequest) -> Iterator[tuple[str, str]]:
    for tool in request.tools:
        yield f"the tool {tool.name}", tool.name


def _in_order(history: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages that a prompt has to show."""
    for message in history:
        if not is_blank(message):
            yield message


def _start_of_results(history: Sequence[Message], number: int, text: str, at: int) -> int:
    """Return where the results around a message may begin: they may be put in the calls' order."""
    shown = list(_in_order(history))
    first = number
    while first and shown[first - 1].role == "tool":
        first -= 1
    places = [text.find(part.strip()) for message in shown[first:number] for part in message.texts]
    return min([place for place in places if place >= 0], default=at) if first < number else at


def _find(text: str, at: int, message: Message) -> int | None:
    """Return the end of a message's texts and calls in a prompt, from ``at`` on; None if absent."""
    for part in message.texts:
        for piece in readable(part).strip().split("\ufffd"):  # whatever stands for a surrogate
            found = text.find(piece, at)
            if found < 0:
                return None
            at = found + len(piece)
    for call in message.calls:
        start = text.find(call.name, at)
        if start < 0:
            return None
        for value in leaves(call.arguments):
            ends = [text.find(form, start) for form in _forms(value)]
            places = [end for end in ends if end >= 0]
            if not places:
                return None
            at = max(at, start, min(places))
    return at


def _forms(value: Any) -> Iterable[str]:
    """Return the ways in which templates write an argument."""
    if not isinstance(value, str):
        return {json.dumps(value), str(value)}
    value = readable(value)
    escaped = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
    return {value.strip("\n"), *escaped}


def _find_forged(
    request: ProgramRequest, prompt: Sequence[int], vocabulary: Vocabulary
) -> Iterator[str]:
    """Yield the texts whose characters became control tokens: they stand between two words."""
    controls = [vocabulary.decode([token]) for token in vocabulary.controls]
    parts = [part for message in request.history for part in message.texts]
    parts += [str(part) for message in request.history for call in message.calls
              for part in leaves(call.arguments)]  # fmt: skip
    for part in parts:
        words = WORD.findall(part)
        if len(words) < 2 or not any(control in part for control in controls):
            continue
        start, end = _place(prompt, words[0], words[-1], vocabulary)
        if any(token in vocabulary.controls for token in prompt[start:end]):
            yield f"characters of a text became control tokens: {_short(part)}"


def _place(prompt: Sequence[int], first: str, last: str, vocabulary: Vocabulary) -> tuple[int, int]:
    """Return the tokens from the end of one word to the beginning of another."""

    def count(word: str) -> int:
        """Return the fewest tokens whose text holds the word."""
        low, high = 0, len(prompt)
        while low < high:
            middle = (low + high) // 2
            held = word in vocabulary.decode(prompt[:middle])
            low, high = (low, middle) if held else (middle + 1, high)
        return low

    return count(first), count(last)


def _short(text: str) -> str:
    text = " ".join(readable(text).split())
    return text if len(text) <= 120 else f"{text[:80]} … {text[-36:]}"


# --- chains ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """A conversation up to an answer that was given."""

    system: str
    shown: frozenset[str]
    """Names of the tools that its chain's prompt shows."""
    messages: tuple[Message, ...]
    """As the policy knows them: its own answers as it gave them."""
    tools: tuple[tuple[Tool, ...], ...]
    """For each message the tools of the request that it answered."""

    def continues(self, request: ProgramRequest) -> bool:
        """Return whether a request goes on where this conversation ended."""
        history, at = request.history, 0
        if request.system != self.system or not self.shown.issuperset(
            tool.name for tool in request.tools
        ):
            return False
        for message, tools in zip(self.messages, self.tools, strict=True):
            if is_blank(message) and (at >= len(history) or not is_blank(history[at])):
                continue
            if at >= len(history) or not matches(message, history[at], tools):
                return False
            at += 1
        return at < len(history) and history[at].role != "assistant"

    def extend(self, request: ProgramRequest, answer: Message) -> Known:
        """Return the conversation after the answer to a request that continues this one."""
        rest = request.history[self.count_repeated(request) :]
        messages = (*self.messages, *rest, answer)
        tools = (*self.tools, *(request.tools for _ in (*rest, answer)))
        return replace(self, messages=messages, tools=tools)

    def count_repeated(self, request: ProgramRequest) -> int:
        """Return how many messages of a request that continues it the conversation has."""
        at = 0
        for message in self.messages:
            at += not (is_blank(message) and not is_blank(request.history[at]))
        return at


def begin(request: ProgramRequest) -> Known:
    """Return the conversation that a new chain begins with, before its first request."""
    return Known(request.system, frozenset(tool.name for tool in request.tools), (), ())


def count_chains(turns: Iterable[ProgramTurn]) -> int:
    """Return into how many chains the answered turns have to fall, at least."""
    known: list[Known] = []
    continued: set[int] = set()
    samplings: set[int] = set()
    for turn in turns:
        if turn.reply is None or turn.sampling is None or turn.sampling in samplings:
            continue
        samplings.add(turn.sampling)
        parents = [at for at, each in enumerate(known) if each.continues(turn.request)]
        parent = max(parents, key=lambda at: len(known[at].messages), default=None)
        if parent is not None:
            continued.add(parent)
        start = begin(turn.request) if parent is None else known[parent]
        known.append(start.extend(turn.request, turn.reply.message(turn.index)))
    return len(known) - len(continued)


# --- what the program gets ------------------------------------------------------------------------


def check_reply(turn: ProgramTurn, sampling: Sampling) -> Iterator[str]:
    """Yield what the program got otherwise than the policy wrote it."""
    reply, answer = turn.reply, sampling.answer
    if reply is None or not answer.is_exact or sampling.unscripted or sampling.finish != "stop":
        return
    if reply.text.strip() != readable(answer.text).strip():
        yield f"the policy wrote {_short(answer.text)!r}, the program got {_short(reply.text)!r}"
    if len(reply.calls) != len(answer.calls):
        yield f"the policy made {len(answer.calls)} calls, the program got {len(reply.calls)}"
    for ours, theirs in zip(answer.calls, reply.calls, strict=False):
        if not is_same_call(ours, theirs):
            yield (
                f"the policy called {ours.name} with {_short(json.dumps(ours.arguments))}, the "
                f"program got {theirs.name} with {_short(json.dumps(theirs.arguments))}"
            )
    if len({call.id for call in reply.calls}) != len(reply.calls):
        yield "two calls of one answer have the same id"
    if not is_blank(reply.message(0)) and reply.stop != ("calls" if answer.calls else "stop"):
        yield f"the reason for the end of the answer is {reply.stop!r}"


def is_same_call(ours: PolicyCall, theirs: PolicyCall) -> bool:
    """Return whether a call was handed over unchanged, but for its id."""
    if not isinstance(theirs.arguments, Mapping) or not isinstance(ours.arguments, Mapping):
        return ours == replace(theirs, id=ours.id)
    texts = (json.dumps(part.arguments, sort_keys=True) for part in (ours, theirs))
    numbers = ours.arguments == theirs.arguments
    return ours.name == theirs.name and (len(set(texts)) == 1 or numbers)

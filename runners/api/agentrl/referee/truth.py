"""Say what any gateway has to do, from what the scenario did alone.

The program knows which of its messages are answers as it got them, in whatever form, and which say
something else: an ``edit`` has another key, a ``respell`` has not. So the truth needs no rule for
what a program may change, and shares no code with a gateway. It knows no template: it says which
texts a prompt has to hold, in which order, and which words it may not hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from agentrl.referee.conversation import (
    Message,
    PolicyCall,
    ProgramRequest,
    ProgramTurn,
    Sampling,
    find_words,
    readable,
)
from agentrl.referee.policy import Vocabulary

# --- what a prompt holds --------------------------------------------------------------------------


def check_prompt(
    request: ProgramRequest,
    answers: Mapping[int, Sampling],
    prompt: Sequence[int],
    vocabulary: Vocabulary,
) -> Iterator[str]:
    """Yield what is wrong with the prompt of a request; nothing, if the policy sees what was sent.

    ``answers``: what was sampled, by the keys of the messages that the program has got.
    """
    # control tokens left out: a text whose characters became one is not there
    text = vocabulary.decode(prompt, controls=False)
    sampled = {key: vocabulary.decode(s.output, controls=False) for key, s in answers.items()}
    names = [(f"the tool {tool.name}", tool.name) for tool in request.tools]
    for name, part in [("the system prompt", request.system), *names]:
        if part.strip() not in text:
            yield f"{name} is not in the prompt: {_short(part)}"
    at = 0
    for group in _group_results(request.history):
        ends = [_find_all(text, at, order, sampled) for order in _orders(group, request.history)]
        if (end := max((end for end in ends if end is not None), default=None)) is not None:
            at = end
            continue
        missing = [m for m in group if _find_all(text, at, [m], sampled) is None]
        for message in missing or group[-1:]:
            said = message.text or json.dumps([call.arguments for call in message.calls])
            yield f"a message ({message.role}) is not in the prompt as it was sent: {_short(said)}"
    own = {message.key for message in request.history}
    allowed = find_words(request.system, *(sampled[key] for key in own & sampled.keys()))
    allowed |= {word for message in request.history for word in message.words()}
    allowed |= find_words(
        *(text for tool in request.tools for text in (tool.name, tool.description))
    )
    allowed |= find_words(*(sampling.answer.thought for sampling in answers.values()))
    for word in sorted(find_words(text) - allowed):
        known = word in find_words(*sampled.values())
        whose = "an answer of the policy" if known else "another request"
        yield f"the prompt has {word}, of {whose}, which this request does not have"


def _group_results(history: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield the messages that a prompt has to show, results in a row together."""
    shown = (message for message in history if not message.is_blank)
    for is_result, group in groupby(shown, lambda message: message.role == "tool"):
        messages = list(group)
        yield from [messages] if is_result else ([message] for message in messages)


def _orders(group: list[Message], history: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the orders in which messages may be shown: as sent, or results in the calls' order."""
    yield group
    ids = [call.id for message in history for call in message.calls]
    if len(group) > 1 and all(message.call_id in ids for message in group):
        yield sorted(group, key=lambda message: ids.index(message.call_id))


def _find_all(
    text: str, at: int, messages: Sequence[Message], sampled: Mapping[int, str]
) -> int | None:
    """Return where messages end that stand one after the other from ``at`` on; None if absent.

    An answer may stand there as the program sent it, or as it was sampled.
    """
    for message in messages:
        ends = [_find(text, at, message)]
        if message.key in sampled:
            whole = text.find(sampled[message.key], at)
            ends.append(whole + len(sampled[message.key]) if whole >= 0 else None)
        found = [end for end in ends if end is not None]
        if not found:
            return None
        at = max(found)
    return at


def _find(text: str, at: int, message: Message) -> int | None:
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
        is_object = isinstance(call.arguments, Mapping)
        for value in call.arguments.values() if is_object else [call.arguments]:
            places = [place for form in _forms(value) if (place := text.find(form, start)) >= 0]
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


def _short(text: str) -> str:
    text = " ".join(readable(text).split())
    return text if len(text) <= 120 else f"{text[:80]} … {text[-36:]}"


# --- chains ---------------------------------------------------------------------------------------


def count_chains(turns: Iterable[ProgramTurn]) -> int:
    """Return into how many chains the answered turns have to fall, at least.

    A request continues a conversation that it begins with, under the same system prompt, and whose
    prompt shows all of its tools.
    """
    ends: list[tuple[str, frozenset[str], list[int]]] = []
    """Of each turn: its system prompt, its chain's tools, the keys up to its answer."""
    continued: set[int] = set()
    for turn in turns:
        if turn.reply is None or turn.sampling is None:
            continue
        request, shown = turn.request, frozenset(tool.name for tool in turn.request.tools)
        said = [message for message in request.history if not message.is_blank]
        keys = [message.key for message in said]
        parents = [
            at
            for at, (system, tools, known) in enumerate(ends)
            if (system, known) == (request.system, keys[: len(known)])
            and tools >= shown
            and len(known) < len(said)
            and said[len(known)].role != "assistant"
        ]
        parent = max(parents, key=lambda at: len(ends[at][2]), default=None)
        if parent is not None:
            continued.add(parent)
            shown = ends[parent][1]
        answer = [] if turn.reply.is_blank else [turn.reply.key]
        ends.append((request.system, shown, keys + answer))
    return len(ends) - len(continued)


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
    if not reply.is_blank and reply.stop != ("calls" if answer.calls else "stop"):
        yield f"the reason for the end of the answer is {reply.stop!r}"


def is_same_call(ours: PolicyCall, theirs: PolicyCall) -> bool:
    """Return whether a call was handed over unchanged, but for its id."""
    texts = {json.dumps(call.arguments, sort_keys=True) for call in (ours, theirs)}
    return ours.name == theirs.name and (len(texts) == 1 or ours.arguments == theirs.arguments)

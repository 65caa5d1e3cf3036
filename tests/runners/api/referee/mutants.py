"""Broken results: of a perfect one a part is changed, wherever a scenario has such a part.

A result is a cell as the judge gets it: turns, calls of the engine, samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from agentrl.referee.conversation import Message, PolicyCall, ProgramTurn, Tool, TrainedSample
from agentrl.referee.judge import Cell
from agentrl.referee.policy import Vocabulary

NEW = "zxaaaaaa"
"""A word that no scenario has."""


def mutate(perfect: Cell, vocabulary: Vocabulary) -> Iterator[tuple[str, str, Cell]]:
    """Yield what is wrong, the score that has to see it, and the broken result to be judged."""

    def fresh() -> Cell:
        happened = (perfect.turns, perfect.samplings, perfect.samples)
        return Cell(perfect.scenario, perfect.wire, "", "", *happened)

    for name, score, samples in _break_samples(perfect, vocabulary):
        yield name, score, replace(fresh(), samples=samples)
    for at, turn in enumerate(perfect.turns):
        if turn.reply is None or turn.sampling is None:
            continue
        own = {t.reply.key for t in perfect.turns[:at] if t.reply is not None}
        broken = (*_break_request(turn, own), *_break_prompt(turn, vocabulary), *_break_reply(turn))
        for name, score, changed in broken:
            turns = [*perfect.turns[:at], changed, *perfect.turns[at + 1 :]]
            yield name, score, replace(fresh(), turns=turns)


# --- samples --------------------------------------------------------------------------------------

VALUES: Mapping[str, Callable[[Any], Any]] = {
    "shifted": lambda values: (values[0], *values[:-1]),
    "all as the last": lambda values: values[-1:] * len(values),
    "all 0": lambda values: (0,) * len(values),
}


def _break_samples(
    perfect: Cell, vocabulary: Vocabulary
) -> Iterator[tuple[str, str, Sequence[TrainedSample]]]:
    samples = perfect.samples
    if not samples:
        return
    sample, *others = samples
    mask = (0, *sample.mask, 0)
    begins = [at for at in range(len(mask) - 1) if mask[at : at + 2] == (0, 1)]
    ends = [at - 1 for at in range(len(mask) - 1) if mask[at : at + 2] == (1, 0)]
    columns = {"mask": "invented", "logprobs": "logprobs", "versions": "versions"}
    for (column, score), (how, change) in product(columns.items(), VALUES.items()):
        old = getattr(sample, column)
        new = change(old)
        if any(bit and one != other for bit, one, other in zip(sample.mask, old, new, strict=True)):
            score = "lost" if column == "mask" and not any(new) else score
            yield f"{column}: {how}", score, [replace(sample, **{column: new}), *others]
    for how, score, places, bit in (
        ("the first token of an answer is not trained", "lost", begins, 0),
        ("the last token of an answer is not trained", "lost", ends, 0),
        ("all of an answer is not trained", "lost", range(begins[0], ends[0] + 1), 0),
        ("a token before an answer is trained", "invented", [begins[0] - 1], 1),
        ("a token of the prompt is trained", "invented", [0], 1),
        ("everything is trained", "invented", range(len(sample.mask)), 1),
    ):
        bits = tuple(bit if at in places else old for at, old in enumerate(sample.mask))
        yield how, score, [replace(sample, mask=bits), *others]
    for where, place in (
        ("in the prompt", 0),
        ("in an answer", begins[0]),
        ("at an end", ends[-1]),
    ):
        tokens = (*sample.tokens[:place], sample.tokens[place] ^ 1, *sample.tokens[place + 1 :])
        yield f"another token {where}", "invented", [replace(sample, tokens=tokens), *others]
        cut = {
            c: (*(v := getattr(sample, c))[:place], *v[place + 1 :]) for c in ("tokens", *columns)
        }
        score = "lost" if place == len(sample.tokens) - 1 else "invented"
        yield f"a token is missing {where}", score, [replace(sample, **cut), *others]
    yield "a sample is missing", "lost", samples[1:]
    yield (
        "a sample is cut",
        "lost",
        [TrainedSample(sample.tokens[: ends[0]], sample.mask[: ends[0]])],
    )
    yield "a sample comes twice", "doubled", [*samples, sample]
    joined = (sample.tokens + samples[-1].tokens, sample.mask + samples[-1].mask)
    yield "samples are joined", "invented", [TrainedSample(*joined), *others]
    if len(begins) > 1:
        halves = [tuple(b if (at < begins[1]) == first else 0 for at, b in enumerate(sample.mask))
                  for first in (True, False)]  # fmt: skip
        split = [replace(sample, mask=half) for half in halves]
        yield "a conversation is split", "chains", [*split, *others]
    again = vocabulary.encode(vocabulary.decode(sample.tokens))
    if tuple(again) != sample.tokens:
        bits = (*sample.mask, *(1 for _ in again))[: len(again)]
        yield (
            "a sample is tokenized again",
            "invented",
            [TrainedSample(tuple(again), bits), *others],
        )
    for other in others:
        if other.tokens[: ends[0]] == sample.tokens[: ends[0]]:
            bits = sample.mask[: ends[0]] + other.mask[ends[0] :]
            changed = replace(other, mask=bits)
            rest = [changed if each is other else each for each in samples]
            yield "a shared beginning is trained in each branch", "doubled", rest
    for sampling in perfect.samplings:
        if sampling.state != "done" and sampling.output:
            bits = (0,) * len(sampling.prompt) + (1,) * len(sampling.output)
            ghost = TrainedSample(sampling.tokens, bits)
            yield f"an answer is trained that is {sampling.state}", "ghost", [*samples, ghost]


# --- requests and answers -------------------------------------------------------------------------

TEXTS: Mapping[str, Callable[[str], str]] = {
    "is shown otherwise": lambda text: f"{text} {NEW}",
    "is shown without its end": lambda text: f"{text}!",
    "is shown without its beginning": lambda text: f"!{text}",
    "is shown with other blanks": lambda text: text.replace(" ", " \n ", 1),
}
"""What is said of the prompt, and what the program sends then, as if it had sent that."""


def _break_request(turn: ProgramTurn, own: set[int]) -> Iterator[tuple[str, str, ProgramTurn]]:
    request, history = turn.request, turn.request.history

    def send(name: str, *messages: Message, **changes: Any) -> tuple[str, str, ProgramTurn]:
        changes = changes or {"history": messages}
        return name, "disobeyed", replace(turn, request=replace(request, **changes))

    yield send("a tool is not shown", tools=(*request.tools, Tool(NEW, "")))
    yield send("the system prompt is not shown", system=f"{request.system} {NEW}")
    yield send("another system prompt is shown", system="You help.")
    for at, message in enumerate(history):
        before, after = history[:at], history[at + 1 :]
        who = "an answer" if message.key in own else f"a message ({message.role})"
        new = replace(message, key=-(10**9))
        yield send(f"{who} is not shown", *before, message, replace(new, texts=(NEW,)), *after)
        if message.words() and not message.calls:
            yield send(f"{who} is shown that was left out", *before, *after)
        if any(" " in text.strip() for text in message.texts):
            for how, change in TEXTS.items():
                texts = tuple(map(change, message.texts))
                yield send(f"{who} {how}", *before, replace(new, texts=texts), *after)
        for call in message.calls[:1]:
            for how, changed in _change_call(call).items():
                yield send(f"in {who} {how}", *before, replace(new, calls=(changed,)), *after)
        for later, other in enumerate(after, at + 1):
            if other.role == message.role == "user":
                swapped = [*before, other, *history[at + 1 : later], message, *history[later + 1 :]]
                yield send("two messages are exchanged", *swapped)


def _change_call(call: PolicyCall) -> dict[str, PolicyCall]:
    """Return a call that is another one, by what is said of whoever shows the old one."""
    changes: dict[str, PolicyCall] = {"a call has another name": replace(call, name=f"{NEW}")}
    if isinstance(call.arguments, Mapping):
        for key, value in call.arguments.items():
            kind = type(value).__name__
            for how, other in (("another", f"{NEW}"), ("a longer", f"{value}!{NEW}")):
                arguments = {**call.arguments, key: other}
                changes[f"an argument ({kind}) is {how} one"] = replace(call, arguments=arguments)
    return changes


def _break_prompt(
    turn: ProgramTurn, vocabulary: Vocabulary
) -> Iterator[tuple[str, str, ProgramTurn]]:
    assert turn.sampling is not None
    prompt = turn.sampling.prompt
    again = vocabulary.encode(vocabulary.decode(prompt))
    if vocabulary.decode(again, controls=False) != vocabulary.decode(prompt, controls=False):
        changed = replace(turn, sampling=replace(turn.sampling, prompt=tuple(again)))
        yield "texts become control tokens", "disobeyed", changed


def _break_reply(turn: ProgramTurn) -> Iterator[tuple[str, str, ProgramTurn]]:
    reply, sampling = turn.reply, turn.sampling
    assert reply is not None
    assert sampling is not None
    yield "a request gets no answer", "refused", replace(turn, reply=None, sampling=None)
    yield "an answer was never sampled", "calls", replace(turn, sampling=None)
    if not sampling.answer.is_exact or sampling.finish != "stop":
        return
    changes: dict[str, dict[str, Any]] = {
        "text is added to an answer": {"texts": (*reply.texts, NEW)}
    }
    if reply.text:
        changes["the text of an answer is lost"] = {"texts": ()}
        changes["the end of an answer is lost"] = {"texts": (reply.text[:-1],)}
    if reply.thought:
        changes["a thought is text"] = {"texts": (reply.thought, *reply.texts)}
    if reply.calls:
        changes["calls are lost"] = {"calls": ()}
        changes["a call is given twice"] = {"calls": (*reply.calls, reply.calls[0])}
        changes["a call is no reason to end"] = {"stop": "stop"}
        for how, changed in _change_call(reply.calls[0]).items():
            changes[f"the program gets: {how}"] = {"calls": (changed, *reply.calls[1:])}
    if len(reply.calls) > 1:
        changes["calls come in another order"] = {"calls": reply.calls[::-1]}
        one_id = tuple(replace(call, id="call_1") for call in reply.calls)
        changes["all calls have one id"] = {"calls": one_id}
    for name, fields in changes.items():
        yield name, "calls", replace(turn, reply=replace(reply, **fields))

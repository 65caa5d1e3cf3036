"""Perfect gateways that are broken in one way each, with the score that has to see it.

A name says what is wrong. A mutant changes one step: the samples, what is taken of a request, what
the program gets, or which turn a request continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from agentrl.referee.conversation import (
    GatewayFault,
    Message,
    ProgramReply,
    ProgramRequest,
    Sampling,
    TrainedSample,
)
from agentrl.referee.echoes import is_blank
from agentrl.referee.reference import Node, PerfectGateway

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a step of a gateway that changes what the perfect one's gives."""


def make_mutants() -> dict[str, tuple[str, type[PerfectGateway]]]:
    """Return the mutants by name, each with its score."""
    return {
        name: (score, type("Mutant", (PerfectGateway,), {step: wrap(change) if wrap else change}))
        for (step, wrap, score), table in TABLES.items()
        for name, change in table.items()
    }


# --- samples --------------------------------------------------------------------------------------


def _change_samples(
    change: Callable[[list[TrainedSample]], list[TrainedSample]],
) -> Callable[..., Any]:
    return lambda self: change(PerfectGateway.finish(self))


def _change_sample(change: Callable[[TrainedSample], TrainedSample]) -> Callable[..., Any]:
    return lambda self, leaf, claimed: change(PerfectGateway.make_sample(self, leaf, claimed))


def _starts(sample: TrainedSample) -> list[int]:
    """Return where each trained stretch begins."""
    mask = (0, *sample.mask)
    return [at for at in range(len(sample.mask)) if mask[at : at + 2] == (0, 1)]


def _ends(sample: TrainedSample) -> list[int]:
    mask = (*sample.mask, 0)
    return [at for at in range(len(sample.mask)) if mask[at : at + 2] == (1, 0)]


def _mask(sample: TrainedSample, places: Iterable[int], bit: int) -> TrainedSample:
    changed = set(places)
    mask = (bit if at in changed else old for at, old in enumerate(sample.mask))
    return replace(sample, mask=tuple(mask))


def _flip(sample: TrainedSample, place: int) -> TrainedSample:
    tokens = (token ^ (at == place) for at, token in enumerate(sample.tokens))
    return replace(sample, tokens=tuple(tokens))


def _join(samples: list[TrainedSample]) -> list[TrainedSample]:
    tokens = (token for sample in samples for token in sample.tokens)
    return [TrainedSample(tuple(tokens), tuple(bit for sample in samples for bit in sample.mask))]


# --- requests -------------------------------------------------------------------------------------


def _change_request(change: Callable[[ProgramRequest], ProgramRequest]) -> Callable[..., Any]:
    return lambda self, request: change(request)


def _change_messages(change: Callable[[Message], Message | None]) -> Callable[..., Any]:
    def receive(self: PerfectGateway, request: ProgramRequest) -> ProgramRequest:
        changed = (change(message) for message in request.history)
        return replace(request, history=tuple(filter(None, changed)))

    return receive


def _texts(message: Message, change: Callable[[str], str], *roles: str) -> Message:
    if roles and message.role not in roles:
        return message
    return replace(message, texts=tuple(map(change, message.texts)))


def _swap_results(request: ProgramRequest) -> ProgramRequest:
    """Give the text of the last result to the one before it, and the other way round."""
    history = list(request.history)
    results = [at for at, message in enumerate(history) if message.role == "tool"]
    if len(results) > 1:
        one, other = results[-2:]
        history[one], history[other] = (
            replace(history[one], texts=history[other].texts),
            replace(history[other], texts=history[one].texts),
        )
    return replace(request, history=tuple(history))


# --- replies --------------------------------------------------------------------------------------


def _change_reply(change: Callable[[ProgramReply], ProgramReply]) -> Callable[..., Any]:
    return lambda self, reply: change(reply)


def _arguments(reply: ProgramReply, change: Callable[[Any], Any]) -> ProgramReply:
    return replace(
        reply,
        calls=tuple(
            replace(call, arguments={key: change(part) for key, part in call.arguments.items()})
            for call in reply.calls
        ),
    )


def _calls(reply: ProgramReply, **changes: Any) -> ProgramReply:
    return replace(reply, calls=tuple(replace(call, **changes) for call in reply.calls))


# --- chains ---------------------------------------------------------------------------------------


def _change_parent(allow: Callable[[Node, ProgramRequest], bool]) -> Callable[..., Any]:
    """Let a request continue a turn only if ``allow`` does."""

    def find_parent(self: PerfectGateway, request: ProgramRequest) -> Node | None:
        parent = PerfectGateway.find_parent(self, request)
        return parent if parent is not None and allow(parent, request) else None

    return find_parent


def _ids(messages: Iterable[Message]) -> list[str]:
    return [call.id for message in messages for call in message.calls]


def _known(node: Node, request: ProgramRequest) -> Iterable[tuple[Message, Message]]:
    known = [message for message in node.known.messages if not is_blank(message)]
    return zip(known, request.history, strict=False)


# --- whole steps ----------------------------------------------------------------------------------

P = PerfectGateway


def _restore(
    self: P, request: ProgramRequest, take: Callable[[Message, Message], Message]
) -> ProgramRequest:
    """Return a request in which ``take`` chooses between an answer and what stands in its place."""
    history = list(request.history)
    for node in self.nodes:
        at = len(node.request.history)
        if at < len(history) and history[at].role == "assistant":
            history[at] = take(node.reply.message(0), history[at])
    return replace(request, history=tuple(history))


def _train_others(self: P, choose: Callable[[Sampling], bool]) -> list[TrainedSample]:
    """Return samples of answers that nobody got, too."""
    kept = {node.sampling.index for node in self.nodes}
    others = [s for s in self.engine.samplings if s.index not in kept and choose(s)]
    return P.finish(self) + [
        TrainedSample(s.prompt + s.output, (0,) * len(s.prompt) + (1,) * len(s.output),
               (0.0,) * len(s.prompt) + s.logprobs)
        for s in others
    ]  # fmt: skip


def _encode_again(self: P, leaf: Node, claimed: set[int]) -> TrainedSample:
    sample = P.make_sample(self, leaf, claimed)
    tokens = self.vocabulary.encode(self.vocabulary.decode(sample.tokens))
    return TrainedSample(tuple(tokens), (*sample.mask, *(1 for _ in tokens))[: len(tokens)])


def _find_first(self: P, request: ProgramRequest) -> Node | None:
    """Return the first turn that stands where the right one does."""
    found = P.find_parent(self, request)
    size = 0 if found is None else len(found.request.history)
    return next((node for node in self.nodes if len(node.request.history) == size), None)


def _find_as_long(self: P, request: ProgramRequest) -> Node | None:
    """Return the answer to a request that was as long."""
    sizes = {len(node.request.history): node for node in self.nodes}
    return sizes.get(len(request.history)) or P.find_stored(self, request)


async def _refuse_surrogate(self: P, request: ProgramRequest, *, stream: bool) -> ProgramReply:
    if any("\ud83d" in message.text for message in request.history):
        raise GatewayFault("HTTP 500: a surrogate", 500)
    return await P.send(self, request, stream=stream)


async def _refuse_third(self: P, request: ProgramRequest, *, stream: bool) -> ProgramReply:
    if len(self.nodes) > 1:
        raise GatewayFault("HTTP 403: a conversation has two turns", 403)
    return await P.send(self, request, stream=stream)


TABLES: dict[tuple[str, Wrap | None, str], dict[str, Callable[..., Any]]] = {
    ("finish", _change_samples, "lost"): {
        "the last sample is lost": lambda samples: samples[:-1],
        "the first of several samples is lost": lambda samples: samples[-1:],
    },
    ("finish", _change_samples, "doubled"): {
        "a sample comes twice": lambda samples: [*samples, *samples[:1]],
    },
    ("finish", _change_samples, "invented"): {
        "all samples are joined": _join,
    },
    ("make_sample", _change_sample, "lost"): {
        "the first token of an answer is not trained": lambda s: _mask(s, _starts(s), 0),
        "the end of an answer is not trained": lambda s: _mask(s, _ends(s), 0),
        "the last answer alone is trained": lambda s: _mask(s, range(_starts(s)[-1]), 0),
        "long samples are cut": lambda s: TrainedSample(s.tokens[:400], s.mask[:400]),
    },
    ("make_sample", _change_sample, "invented"): {
        "the mask is shifted": lambda s: replace(s, mask=(0, *s.mask[:-1])),
        "everything is trained": lambda s: replace(s, mask=(1,) * len(s.mask)),
        "a token before an answer is trained": lambda s: _mask(s, [at - 1 for at in _starts(s)], 1),
        "a token of the prompt is another one": lambda s: _flip(s, 0),
        "a sampled token is another one": lambda s: _flip(s, _starts(s)[-1]),
        "a token is put before the prompt": lambda s: TrainedSample((0, *s.tokens), (0, *s.mask)),
    },
    ("make_sample", _change_sample, "logprobs"): {
        "logprobs are 0": lambda s: replace(s, logprobs=(0.0,) * len(s.mask)),
        "logprobs are shifted": lambda s: replace(s, logprobs=(0.0, *s.logprobs[:-1])),
        "logprobs are rounded": lambda s: replace(
            s, logprobs=tuple(round(value, 3) for value in s.logprobs)
        ),
    },
    ("make_sample", _change_sample, "versions"): {
        "all weights are the last ones": lambda s: replace(
            s, versions=s.versions[-1:] * len(s.mask)
        ),
    },
    ("receive", _change_request, "disobeyed"): {
        "the system prompt is left out": lambda r: replace(r, system=""),
        "tools are left out": lambda r: replace(r, tools=()),
        "the newest message is left out": lambda r: replace(
            r, history=r.history[:-1] if len(r.history) > 1 else r.history
        ),
        "the first message is left out": lambda r: replace(
            r, history=r.history[len(r.history) > 1 :]
        ),
        "a long conversation is cut in the middle": lambda r: replace(
            r, history=r.history[:1] + r.history[1:][-6:]
        ),
        "results of two calls are exchanged": _swap_results,
    },
    ("receive", _change_messages, "disobeyed"): {
        "results are cut": lambda m: _texts(m, lambda t: t[:1000], "tool"),
        "blanks of results are folded": lambda m: _texts(m, lambda t: " ".join(t.split()), "tool"),
        "the first block of a message alone is read": lambda m: replace(m, texts=m.texts[:1]),
        "messages in list form are empty": lambda m: (
            replace(m, texts=()) if m.is_list and m.role == "user" else m
        ),
        "other letters than ASCII are left out": lambda m: _texts(
            m, lambda t: t.encode("ascii", "ignore").decode()
        ),
        "reminders are left out": lambda m: None if m.text.startswith("<system-reminder>") else m,
        "later system messages are left out": lambda m: None if m.role == "system" else m,
        "messages with images are left out": lambda m: None if m.image else m,
        "half a character ends a text": lambda m: _texts(m, lambda t: t.split("\ud83d")[0]),
        "text before a call is left out": lambda m: replace(m, texts=()) if m.calls else m,
        "what nobody sampled is left out": lambda m: (
            None if m.role == "assistant" and m.origin is None else m
        ),
    },
    ("answer", _change_reply, "calls"): {
        "arguments are stripped": lambda r: _arguments(
            r, lambda part: part.strip() if isinstance(part, str) else part
        ),
        "numbers become text": lambda r: _arguments(r, str),
        "arguments are lost": lambda r: _calls(r, arguments={}),
        "the first call alone is read": lambda r: replace(r, calls=r.calls[:1]),
        "calls come in another order": lambda r: replace(r, calls=r.calls[::-1]),
        "calls are text": lambda r: replace(
            r, calls=(), texts=(*r.texts, *(str(call) for call in r.calls))
        ),
        "all calls have one id": lambda r: _calls(r, id="call_1"),
        "text is lost beside calls": lambda r: replace(r, texts=()) if r.calls else r,
        "thoughts are text": lambda r: replace(r, texts=(r.thought, *r.texts)),
        "a call is no reason to end": lambda r: replace(r, stop="stop"),
        "an answer of nobody": lambda r: ProgramReply(("An answer zxaaaaaa.",)),
    },
    ("find_parent", _change_parent, "chains"): {
        "each turn is a chain": lambda node, request: False,
        "ids are compared": lambda node, request: (
            set(_ids(node.known.messages)) <= set(_ids(request.history))
        ),
        "texts are compared exactly": lambda node, request: all(
            o.texts == t.texts for o, t in _known(node, request)
        ),
        "thoughts are compared": lambda node, request: all(
            o.thought == t.thought for o, t in _known(node, request)
        ),
        "marks are compared": lambda node, request: all(
            o.marked == t.marked for o, t in _known(node, request)
        ),
        "forms are compared": lambda node, request: all(
            o.is_list == t.is_list for o, t in _known(node, request)
        ),
        "the order of tools is compared": lambda node, request: node.request.tools == request.tools,
        "an empty answer has to come back": lambda node, request: (
            not any(map(is_blank, node.known.messages))
        ),
    },
    ("receive", None, "disobeyed"): {
        "an answer is known by its place": lambda self, request: _restore(
            self, request, lambda answer, sent: answer
        ),
        "edits of texts are undone": lambda self, request: _restore(
            self, request, lambda answer, sent: replace(sent, texts=answer.texts)
        ),
        "edits of calls are undone": lambda self, request: _restore(
            self, request, lambda answer, sent: replace(sent, calls=answer.calls)
        ),
        "the first system prompt stays": lambda self, request: replace(
            request, system=next((n.request.system for n in self.nodes), request.system)
        ),
    },
    ("find_parent", None, "disobeyed"): {
        "tools that come later are not shown": lambda self, request: P.find_parent(
            self, replace(request, tools=())
        ),
    },
    ("find_stored", None, "disobeyed"): {
        "an answer is given to another request": _find_as_long,
    },
    ("encode", None, "disobeyed"): {
        "texts become control tokens": lambda self, text: self.vocabulary.encode(text),
    },
    ("write", None, "disobeyed"): {},
    ("make_sample", None, "doubled"): {
        "a shared beginning is trained in each branch": lambda self, leaf, claimed: P.make_sample(
            self, leaf, set()
        ),
    },
    ("make_sample", None, "invented"): {
        "samples are tokenized again": _encode_again,
    },
    ("finish", None, "ghost"): {
        "answers that nobody waited for are trained": lambda self: _train_others(
            self, lambda sampling: sampling.state == "cut"
        ),
        "aborted answers are trained": lambda self: _train_others(
            self, lambda sampling: bool(sampling.answer.fault)
        ),
    },
    ("send", None, "refused"): {
        "half a character is refused": _refuse_surrogate,
        "the third turn is refused": _refuse_third,
    },
}
"""By the step that is changed, how, and the score that sees it: what is wrong, and the change."""

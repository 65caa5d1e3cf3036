"""A small gateway whose results are perfect: the self-test breaks them (``mutants.py``).

It takes neutral requests, without HTTP, and is told by the messages' keys what is an answer as it
was given: so the self-test shows that the judge sees, not which echoes are the same. Scenarios
state that, and our own gateway, which has to compare texts, is the check of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentrl.referee.clients import ApiClient
from agentrl.referee.conversation import (
    Message,
    ProgramRequest,
    Sampling,
    TrainedSample,
    readable,
)
from agentrl.referee.policy import CueEngine


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One turn."""

    request: ProgramRequest
    parent: Node | None
    sampling: Sampling
    reply: Message
    shown: frozenset[str]
    """Names of the tools that its chain's prompt shows."""

    @property
    def conversation(self) -> list[Message]:
        """What was said up to its answer, blank answers left out."""
        return list(_shown([*self.request.history, self.reply]))


class PerfectGateway:
    """A gateway for one session."""

    def __init__(self, engine: CueEngine) -> None:
        self.engine = engine
        self.vocabulary = engine.vocabulary
        self.nodes: list[Node] = []

    async def send(self, request: ProgramRequest, *, stream: bool) -> Message:
        """Answer a request, as ``ApiClient`` has it."""
        found = [node for node in self.nodes if self.continues(node, request)]
        parent = max(found, key=lambda node: len(node.request.history), default=None)
        prompt = self.render(request, parent)
        while (sampling := await self.engine.sample(prompt)).answer.fault:
            pass
        shown = parent.shown if parent else frozenset(tool.name for tool in request.tools)
        self.nodes.append(Node(request, parent, sampling, self.parse(sampling), shown))
        return self.nodes[-1].reply

    def parse(self, sampling: Sampling) -> Message:
        """Return the answer; the engine says what it is made of."""
        answer = sampling.answer
        text = answer.text if answer.is_exact else self.vocabulary.write(answer)
        calls = tuple(
            replace(call, id=f"call_{sampling.index}.{at}")
            for at, call in enumerate(answer.calls if answer.is_exact else ())
        )
        stop = "calls" if calls else "length" if sampling.finish == "length" else "stop"
        thought = answer.thought if answer.is_exact else ""
        key = -1 - sampling.index  # the program's own keys are positive
        texts = (text,) if text else ()
        return Message("assistant", texts, calls, thought, stop=stop, key=key)

    def continues(self, node: Node, request: ProgramRequest) -> bool:
        """Return whether a request goes on after a turn, in whatever form that comes back."""
        known, sent = node.conversation, list(_shown(request.history))
        return (
            request.system == node.request.system
            and node.shown.issuperset(tool.name for tool in request.tools)
            and len(sent) > len(known)
            and all(ours.key == theirs.key for ours, theirs in zip(known, sent, strict=False))
            and sent[len(known)].role != "assistant"
        )

    # --- prompts --------------------------------------------------------------------------------

    def render(self, request: ProgramRequest, parent: Node | None) -> list[int]:
        """Return the prompt: the parent's tokens and what is new, or all of it."""
        messages = list(_shown(request.history))
        if parent is None:
            tools = [
                json.dumps({"name": tool.name, "description": tool.description, **tool.schema})
                for tool in request.tools
            ]
            system = "\n".join([request.system, *tools])
            tokens = self.render_message("system", system)
        else:
            tokens = list(parent.sampling.tokens)
            if tokens[-1] != self.vocabulary.end:  # it was cut
                tokens.append(self.vocabulary.end)
            tokens += self.encode("\n")
            messages = messages[len(parent.conversation) :]
        for message in messages:
            calls = map(self.vocabulary.write_call, message.calls)
            text = readable("\n".join([*message.texts, *calls]))
            tokens += self.render_message(message.role, text)
        return [*tokens, *self.vocabulary.encode("<|im_start|>assistant\n")]

    def render_message(self, role: str, text: str) -> list[int]:
        """Return the tokens of one message."""
        start = self.vocabulary.encode(f"<|im_start|>{role}\n")
        return [*start, *self.encode(text), self.vocabulary.end, *self.encode("\n")]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text none of whose characters make a control token."""
        pieces = re.split(r"(?<=<)", text)
        return [token for piece in pieces for token in self.vocabulary.encode(piece)]

    # --- samples --------------------------------------------------------------------------------

    def finish(self) -> list[TrainedSample]:
        """Return a sequence for each turn that none continues; each turn is trained in one."""
        claimed: set[int] = set()
        continued = {node.parent for node in self.nodes}
        return [self.make_sample(node, claimed) for node in self.nodes if node not in continued]

    def make_sample(self, leaf: Node, claimed: set[int]) -> TrainedSample:
        """Return the sequence that ends with a turn."""
        tokens = leaf.sampling.tokens
        size = len(tokens)
        mask, logprobs, versions = [0] * size, [0.0] * size, [leaf.sampling.version] * size
        node: Node | None = leaf
        while node is not None:
            sampling = node.sampling
            for at, logprob in enumerate(sampling.logprobs, len(sampling.prompt)):
                mask[at] = int(sampling.index not in claimed)
                logprobs[at], versions[at] = logprob, sampling.version
            claimed.add(sampling.index)
            node = node.parent
        return TrainedSample(tokens, tuple(mask), tuple(logprobs), tuple(versions))


def _shown(history: Sequence[Message]) -> Iterator[Message]:
    return (message for message in history if not message.is_blank)


@dataclass(frozen=True, slots=True)
class ReferenceGateway:
    """A perfect gateway for each session."""

    engine: CueEngine
    make: type[PerfectGateway] = PerfectGateway

    async def open(self, wire: str) -> tuple[ApiClient, PerfectGateway]:
        """See ``Gateway``."""
        gateway = self.make(self.engine)
        return gateway, gateway

    async def finish(self, handle: PerfectGateway) -> list[TrainedSample]:
        """See ``Gateway``."""
        return handle.finish()

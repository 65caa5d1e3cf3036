"""A perfect gateway, small and slow: every rule of ``truth.py`` in the plainest way.

It has no HTTP: it takes neutral requests. The self-test breaks it on purpose (``mutants.py``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.referee.conversation import (
    Message,
    PolicyCall,
    ProgramReply,
    ProgramRequest,
    Sampling,
    TrainedSample,
    readable,
)
from agentrl.referee.engine import CueEngine
from agentrl.referee.truth import Known, begin


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One turn."""

    request: ProgramRequest
    parent: Node | None
    sampling: Sampling
    reply: ProgramReply
    known: Known
    """The conversation up to and with its answer."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output."""
        return self.sampling.prompt + self.sampling.output


class PerfectGateway:
    """A gateway for one session; a mutant overrides one of its methods."""

    wire = "neutral"

    def __init__(self, engine: CueEngine) -> None:
        self.engine = engine
        self.vocabulary = engine.vocabulary
        self.nodes: list[Node] = []

    async def send(self, request: ProgramRequest, *, stream: bool) -> ProgramReply:
        """Answer a request, as ``ApiClient`` has it."""
        request = self.receive(request)
        stored = self.find_stored(request)
        if stored is None:
            parent = self.find_parent(request)
            prompt = self.render(request, parent)
            sampling = await self.sample(prompt)
            reply = self.parse(sampling)
            known = (begin(request) if parent is None else parent.known).extend(
                request, reply.message(0)
            )
            stored = Node(request, parent, sampling, reply, known)
            self.nodes.append(stored)
        return self.answer(stored.reply)

    async def sample(self, prompt: Sequence[int]) -> Sampling:
        """Ask the engine until it does not fail."""
        while (sampling := await self.engine.sample(prompt)).answer.fault:
            pass
        return sampling

    def receive(self, request: ProgramRequest) -> ProgramRequest:
        """Return what is taken of a request."""
        return request

    def answer(self, reply: ProgramReply) -> ProgramReply:
        """Return what the program gets."""
        return reply

    def parse(self, sampling: Sampling) -> ProgramReply:
        """Return the answer; the engine says what it is made of."""
        answer = sampling.answer
        calls = tuple(
            replace(call, id=f"call_{sampling.index}.{at}") for at, call in enumerate(answer.calls)
        )
        text = answer.text if answer.raw is None else answer.raw
        stop = "calls" if calls else "length" if sampling.finish == "length" else "stop"
        return ProgramReply((text,) if text else (), calls, answer.thought, stop)

    def find_stored(self, request: ProgramRequest) -> Node | None:
        """Return the turn that was asked for with the same words."""
        key = _key(request)
        return next((node for node in self.nodes if _key(node.request) == key), None)

    def find_parent(self, request: ProgramRequest) -> Node | None:
        """Return the turn after which a request goes on, the longest one."""
        found = [node for node in self.nodes if node.known.continues(request)]
        return max(found, key=lambda node: len(node.known.messages), default=None)

    # --- prompts --------------------------------------------------------------------------------

    def render(self, request: ProgramRequest, parent: Node | None) -> list[int]:
        """Return the prompt: the parent's tokens and what is new, or all of it."""
        if parent is None:
            system = "\n".join([request.system, *map(self.write_tool, request.tools)])
            tokens = self.render_message("system", system)
            new: Sequence[Message] = request.history
        else:
            tokens = list(parent.tokens)
            if tokens[-1] != self.vocabulary.end:  # it was cut
                tokens.append(self.vocabulary.end)
            tokens += self.encode("\n")
            new = request.history[parent.known.count_repeated(request) :]
        for message in new:
            tokens += self.render_message(message.role, self.write(message))
        return [*tokens, *self.vocabulary.encode("<|im_start|>assistant\n")]

    def render_message(self, role: str, text: str) -> list[int]:
        """Return the tokens of one message; the characters of its text make no control token."""
        start = self.vocabulary.encode(f"<|im_start|>{role}\n")
        return [*start, *self.encode(text), self.vocabulary.end, *self.encode("\n")]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that came from outside."""
        return self.vocabulary.encode_plain(text)

    def write_tool(self, tool: Any) -> str:
        """Return what the policy is told of a tool."""
        return json.dumps({"name": tool.name, "description": tool.description, **tool.schema})

    def write(self, message: Message) -> str:
        """Return the text of a message."""
        calls: Sequence[PolicyCall] = message.calls
        return readable("\n".join([*message.texts, *map(self.vocabulary.write_call, calls)]))

    # --- samples --------------------------------------------------------------------------------

    def finish(self) -> list[TrainedSample]:
        """Return a sequence for each turn that none continues; each turn is trained in one."""
        claimed: set[int] = set()
        continued = {node.parent for node in self.nodes}
        return [self.make_sample(node, claimed) for node in self.nodes if node not in continued]

    def make_sample(self, leaf: Node, claimed: set[int]) -> TrainedSample:
        """Return the sequence that ends with a turn."""
        size = len(leaf.tokens)
        mask, logprobs, versions = [0] * size, [0.0] * size, [leaf.sampling.version] * size
        node: Node | None = leaf
        while node is not None:
            sampling = node.sampling
            start = len(sampling.prompt)
            for at, logprob in enumerate(sampling.logprobs, start):
                mask[at] = int(sampling.index not in claimed)
                logprobs[at], versions[at] = logprob, sampling.version
            claimed.add(sampling.index)
            node = node.parent
        return TrainedSample(leaf.tokens, tuple(mask), tuple(logprobs), tuple(versions))


def _key(request: ProgramRequest) -> str:
    """Return what two requests have in common that say the same."""
    history = [
        (m.role, m.texts, [(c.name, c.arguments, c.id) for c in m.calls], m.call_id, m.image)
        for m in request.history
    ]
    tools = [(tool.name, tool.description) for tool in request.tools]
    return json.dumps([request.system, tools, history])

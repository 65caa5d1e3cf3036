"""Turns placed as a session places them, without HTTP, engine or store: the policy is scripted."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from runners.gateway.conversation import (
    Answer,
    IssuedCall,
    Piece,
    RequestAttribution,
    TurnRequest,
    sent_pieces,
)
from runners.gateway.texts.text_work import TextWork
from runners.gateway.texts.texts import Texts
from runners.gateway.tree.branches import Branches, Placement
from runners.gateway.tree.prefix_matching import prepare_request
from runners.records.record import Turn
from runners.records.tokenizer import Renderer, Tokenizer
from tests.fakes.running_gateway import make_limits

SYSTEM = Piece(-1, "system", "text", "You fix bugs.")
TOOLS = [{"type": "function", "function": {"name": "Bash", "parameters": {}}}]


def run_at_once(placement: Coroutine[Any, Any, Placement]) -> Placement:
    """Return the result of a coroutine that waits for nothing, as short texts are placed."""
    try:
        placement.send(None)
    except StopIteration as done:
        return cast(Placement, done.value)
    raise AssertionError("it waits")


@dataclass
class PlacingGateway:
    """Takes turns as a session does, with a scripted policy."""

    renderer: Renderer
    tokenizer: Tokenizer
    branches: Branches = field(init=False)
    turns: list[Turn] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    places: list[Placement] = field(default_factory=list)
    last: TurnRequest = field(init=False)
    """The request that was answered last, not counting retries."""

    def __post_init__(self) -> None:
        texts = Texts(TextWork(self.tokenizer, self.renderer, "qwen3"), make_limits())
        self.branches = Branches("s", texts)

    def ask(self, request: TurnRequest, *calls: IssuedCall, text: str = "") -> int:
        """Return the index of the turn that answers a request."""
        asked = prepare_request(request, "test")
        earlier = self.branches.find_answer(asked.fingerprint)
        if earlier is not None:
            return int(earlier[0]["turn"])
        place = run_at_once(self.branches.find_placement(asked))
        body = text + "".join(f"<tool_call>{call.id}</tool_call>" for call in calls)
        output = np.array(self.tokenizer.encode(body + "<|im_end|>"), np.int32)
        kept, left = place.parent.node.length if place.parent else 0, place.history_break
        turn = Turn(
            session_id="s", index=len(self.turns), thread=place.thread,
            parent_thread=place.name.parent_thread, branch=place.branch,
            segment=self.branches.choose_segment(place),
            parent=place.parent.node.index if place.parent else None, prompt_kept=kept,
            prompt_new=np.array(place.prompt[kept:], np.int32), output_ids=output,
            output_logprobs=np.full(len(output), -0.5, np.float32), weight_version=0,
            finish_reason="stop",
            break_reason=f"{left.kind}: {left.reason}" if left else None,
            malformed_calls=0, request={}, reply={}, usage={}, started_at=0.0, engine_s=0.0,
            total_s=0.0,
        )  # fmt: skip
        answer = Answer("", text, calls, 0, "end_turn", None, {})
        sent = sent_pieces(text, calls)
        self.branches.add_turn(turn, place, asked, answer, {"turn": turn.index}, sent)
        self.turns.append(turn)
        self.prompts.append(place.prompt.tolist())
        self.places.append(place)
        self.last = request
        return turn.index

    def check(self) -> None:
        """Hold the invariants: paths are what the model saw, each sampled token is trained once."""
        chains = self.branches.graph.build_segments()
        owned = sorted(index for chain in chains for index in chain.own_turns)
        assert owned == list(range(len(self.turns)))
        assert sum(int(chain.loss_mask.sum()) for chain in chains) == sum(
            len(turn.output_ids) for turn in self.turns
        )
        for chain in chains:
            for index in chain.turns:
                saw = [*self.prompts[index], *self.turns[index].output_ids.tolist()]
                assert chain.tokens[: len(saw)].tolist() == saw


def request(pieces: Sequence[Piece], **attributes: Any) -> TurnRequest:
    """Return a request as a dialect reads it."""
    attribution = RequestAttribution(**attributes)
    return TurnRequest("m", tuple(pieces), TOOLS, 1000, attribution=attribution)


def user(text: str, message: int = 0) -> Piece:
    return Piece(message, "user", "text", text)


def call_of(call: IssuedCall, message: int) -> Piece:
    return Piece(message, "assistant", "tool_call", "", call.id, call.name, call.arguments)


def result_of(call: IssuedCall, message: int, text: str = "ok") -> Piece:
    return Piece(message, "user", "tool_result", text, tool_id=call.id)


def dispatch(number: int, task: str, name: str = "Agent") -> IssuedCall:
    """Return a call that starts a sub-agent."""
    return IssuedCall(f"d{number}", name, {"prompt": task, "description": "look"})

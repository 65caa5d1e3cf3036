"""One token chain of a session: what the model saw and said so far, and whether a request continues
it.

Invariant: ``tokens`` is exactly prompt + output of the chain's last turn. Assistant turns are
recognised by the ids of their tool calls and by their place, never by their text: clients drop
thoughts, reorder keys and reformat; what the policy sampled stays as it was sampled.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from runners.gateway.conversation import (
    SYSTEM_PROMPT,
    Answer,
    Piece,
    TurnRequest,
    renderer_messages,
)
from runners.gateway.tokenizer import Renderer
from runners.trajectory.record import Turn


@dataclass(frozen=True, slots=True)
class Given:
    """A piece that came from outside; it must come back unchanged."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """An uninterrupted run of assistant pieces; it must come back at its place, with its tool
    calls.
    """

    tool_ids: tuple[str, ...]
    may_vanish: bool = False
    """Nothing was said: clients drop such a turn."""


Part = Given | Said


@dataclass(frozen=True, slots=True)
class Sent:
    """A part of a request."""

    first: int
    """Index of its first piece."""
    part: Part


@dataclass(frozen=True, slots=True)
class Break:
    """Why a request does not continue a chain."""

    reason: str


def outline(pieces: Sequence[Piece], keys: Sequence[bytes]) -> list[Sent]:
    """Return the parts of a request: one per foreign piece, one per run of assistant pieces."""
    parts: list[Sent] = []
    for is_said, group in groupby(range(len(pieces)), lambda at: pieces[at].role == "assistant"):
        members = list(group)
        if is_said:
            ids = (pieces[at].tool_id for at in members if pieces[at].kind == "tool_call")
            parts.append(Sent(members[0], Said(tuple(ids))))
        else:
            parts += [Sent(at, Given(keys[at])) for at in members]
    return parts


def first_new(
    history: Sequence[Part], sent: Sequence[Sent], pieces: Sequence[Piece]
) -> Sent | Break:
    """Return the first part that ``history`` does not know, or why this is no continuation."""
    at = 0
    for known in history:
        may_vanish = isinstance(known, Said) and known.may_vanish
        if at == len(sent):
            if may_vanish:
                continue
            return Break(_AGAIN if known is history[-1] else f"cut back to {at} known parts")
        came, place = sent[at].part, _place(pieces[sent[at].first])
        match known, came:
            case Said(), Said():
                if came.tool_ids != known.tool_ids:
                    return Break(f"{place} came back with other tool calls")
            case Said(), Given():
                if may_vanish:
                    continue
                return Break(f"{place} stands where an assistant turn was")
            case _:
                if came != known:
                    return Break(f"{place} is not what was sent before")
        at += 1
    if at == len(sent):
        return Break(_AGAIN)
    if isinstance(sent[at].part, Said):
        return Break(f"{_place(pieces[sent[at].first])} was not sampled here")
    return sent[at]


_AGAIN = "the last turn was asked for again, with other parameters"


def _place(piece: Piece) -> str:
    if piece.message == SYSTEM_PROMPT:
        return "the system prompt"
    return f"message {piece.message} ({piece.role} {piece.kind})"


class Chain:
    """Grows by one turn at a time; changed by its session only."""

    def __init__(self, index: int) -> None:
        self.index = index
        """Segment number of its turns."""
        self.tokens = array("i")
        self.prompt_length = 0
        """Where the last turn's output begins."""
        self.history: list[Part] = []
        self.tools: list[dict[str, Any]] = []
        self.mark = b""
        """Fingerprint of the request that the last turn answered."""
        self.response: dict[str, Any] = {}
        """What the last turn answered."""

    def continue_prompt(
        self, renderer: Renderer, request: TurnRequest, sent: Sequence[Sent]
    ) -> tuple[int, list[int]] | Break:
        """Return the first new piece and the whole prompt, which begins with ``tokens``; or why
        it cannot be had.
        """
        new = first_new(self.history, sent, request.pieces)
        if isinstance(new, Break):
            return new
        held = self.tokens.tolist()
        bridged = renderer.bridge_to_next_turn(
            held[: self.prompt_length],
            held[self.prompt_length :],
            renderer_messages(request.pieces[new.first :]),
            tools=request.tools or None,
        )
        if bridged is None:
            return Break("the renderer cannot continue after this output")
        if bridged.token_ids[: len(held)] != held:
            return Break("the renderer's continuation changes tokens that were already seen")
        return new.first, bridged.token_ids

    def take_in(
        self, turn: Turn, answer: Answer, request: TurnRequest, news: Iterable[Sent], mark: bytes
    ) -> None:
        """Grow by a finished turn, whose request brought the parts ``news``."""
        self.tokens.frombytes(turn.prompt_new.tobytes())
        self.prompt_length = len(self.tokens)
        self.tokens.frombytes(turn.output_ids.tobytes())
        self.history += [sent.part for sent in news]
        calls = tuple(call.id for call in answer.calls)
        self.history.append(Said(calls, may_vanish=not calls and not answer.text.strip()))
        self.tools = request.tools
        self.mark = mark
        self.response = turn.response

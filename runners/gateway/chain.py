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


Entry = Given | Said


@dataclass(frozen=True, slots=True)
class Break:
    """Why a request does not continue a chain."""

    reason: str


def entries(pieces: Sequence[Piece], keys: Iterable[bytes]) -> list[Entry]:
    """Return what must come back of these pieces; assistant runs among them were not sampled in
    this chain.
    """
    made: list[Entry] = []
    run: list[str] | None = None
    for piece, key in zip(pieces, keys, strict=True):
        if piece.role != "assistant":
            if run is not None:
                made.append(Said(tuple(run)))
                run = None
            made.append(Given(key))
        else:
            run = [] if run is None else run
            if piece.kind == "tool_call":
                run.append(piece.tool_id)
    if run is not None:
        made.append(Said(tuple(run)))
    return made


def first_new(
    history: Sequence[Entry], pieces: Sequence[Piece], keys: Sequence[bytes]
) -> int | Break:
    """Return the index of the first piece that ``history`` does not know, or why the request is no
    continuation.
    """
    at = 0
    for entry in history:
        if isinstance(entry, Given):
            if at == len(pieces):
                return Break(
                    f"the conversation was cut back to {at} of {len(history)} known pieces"
                )
            if keys[at] != entry.key:
                return Break(f"{_place(pieces[at])} is not what was sent before")
            at += 1
            continue
        end = at
        while end < len(pieces) and pieces[end].role == "assistant":
            end += 1
        if end == at:
            if entry.may_vanish:
                continue
            return Break(
                f"{_place(pieces[at])} stands where an assistant turn was"
                if at < len(pieces)
                else "the conversation was cut back to before an assistant turn"
            )
        if (
            tuple(piece.tool_id for piece in pieces[at:end] if piece.kind == "tool_call")
            != entry.tool_ids
        ):
            return Break(f"{_place(pieces[at])} came back with other tool calls")
        at = end
    if at == len(pieces):
        return Break("the same messages were sent again with other parameters")
    return at


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
        self.history: list[Entry] = []
        self.tools: list[dict[str, Any]] = []
        self.mark = b""
        """Fingerprint of the request that the last turn answered."""
        self.response: dict[str, Any] = {}
        """What the last turn answered."""

    def continue_prompt(
        self, renderer: Renderer, request: TurnRequest, keys: Sequence[bytes]
    ) -> tuple[int, list[int]] | Break:
        """Return the first new piece and the whole prompt, which begins with ``tokens``; or why it
        cannot be had.
        """
        new = first_new(self.history, request.pieces, keys)
        if isinstance(new, Break):
            return new
        held = self.tokens.tolist()
        bridged = renderer.bridge_to_next_turn(
            held[: self.prompt_length],
            held[self.prompt_length :],
            renderer_messages(request.pieces[new:]),
            tools=request.tools or None,
        )
        if bridged is None:
            return Break("the renderer cannot continue after this output (see bridge_to_next_turn)")
        if bridged.token_ids[: len(held)] != held:
            return Break("the renderer's continuation changes tokens that were already seen")
        return new, bridged.token_ids

    def take_in(
        self,
        turn: Turn,
        answer: Answer,
        request: TurnRequest,
        new: int,
        keys: Sequence[bytes],
        mark: bytes,
    ) -> None:
        """Grow by a finished turn, whose request brought the pieces from ``new`` on."""
        self.tokens.frombytes(turn.prompt_new.tobytes())
        self.prompt_length = len(self.tokens)
        self.tokens.frombytes(turn.output_ids.tobytes())
        self.history += entries(request.pieces[new:], keys[new:])
        calls = tuple(call.id for call in answer.calls)
        self.history.append(Said(calls, may_vanish=not calls and not answer.text.strip()))
        self.tools = request.tools
        self.mark = mark
        self.response = turn.response

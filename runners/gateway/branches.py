"""Where a request belongs among a session's turns: whose thread, after which turn, what for.

A request continues the turn whose whole history it repeats; one that repeats less forks off the
last turn that it does repeat, so that no token is rendered again; one that repeats nothing is
rendered whole. Threads that the agent program names are kept apart; what nobody names belongs to
the main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runners.gateway.attribution import MAIN
from runners.gateway.conversation import (
    SYSTEM_PROMPT,
    Answer,
    IssuedCall,
    Piece,
    TurnRequest,
    group_messages,
)
from runners.gateway.prefix_matching import (
    AssistantPart,
    HistoryBreak,
    Part,
    PrefixMatch,
    RequestPart,
    match_prefix,
)
from runners.gateway.refusal import RefusalKind, Refused
from runners.gateway.tokenizer import Renderer, Tokenizer
from runners.trajectory.graph import TurnGraph, TurnNode
from runners.trajectory.prefix import common_prefix_length
from runners.trajectory.record import BranchKind, Turn

COMPACTION_PROMPTS = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
)
"""How programs without hint headers begin the text that asks for a summary: Claude Code, Codex."""
COMPACTION_SUMMARIES = (
    "This session is being continued from a previous conversation that ran out of context",
    "Another language model started to solve this problem and produced a summary",
)
"""How they begin the first user message after it."""
SUBAGENT_TOOLS = ("Agent", "Task")
"""Tools that start a sub-agent."""
EXCERPT_TOKENS = 12
"""Of each side of a break."""


@dataclass(frozen=True, slots=True, eq=False)
class PathNode:
    """A turn of the graph, with what recognises it when it comes back."""

    node: TurnNode
    parts: tuple[Part, ...]
    """What its request added, then what it said."""
    tools: list[dict[str, Any]]
    """The same object along a path until they change: they are large."""

    @property
    def prompt_length(self) -> int:
        """Tokens before its output."""
        return self.node.length - len(self.node.output_ids)


@dataclass(frozen=True, slots=True)
class TipState:
    """What only the last turn of a chain must remember."""

    mark: bytes
    """Fingerprint of the request it answered."""
    response: dict[str, Any]
    """The body that answered it."""
    calls: tuple[IssuedCall, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request belongs, and its prompt."""

    after: PathNode | None
    """The turn it continues; None: it is rendered whole."""
    new: int
    """First piece that is not part of that turn's history."""
    prompt: list[int]
    thread: str
    parent_thread: str | None
    branch: BranchKind
    why: HistoryBreak | None
    """What became of the history, where some of it is left behind."""
    tools_changed: bool = False
    """Its tools differ from those of the turn it continues."""
    ambiguous: bool = False
    """It may be a sub-agent's request, but nothing says of which: the main thread has it."""
    differs: dict[str, Any] = field(default_factory=dict)
    """The first token that differs from what is left behind: ``token``, ``before``, ``after``."""


class Branches:
    """The turn graph of a session as its requests see it; grows by ``take_in`` only."""

    def __init__(self, renderer: Renderer, tokenizer: Tokenizer) -> None:
        self.graph = TurnGraph()
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._heard: list[PathNode] = []
        """By turn index."""
        self._tips: list[PathNode] = []
        """Turns that no turn of their line continues; least recently used first."""
        self._endings: dict[int, TipState] = {}
        """Of the tips, by turn index."""

    def find_answer(self, mark: bytes) -> tuple[dict[str, Any], int] | None:
        """Return the body that answered this very request, if nothing was said after it, and how
        many tokens the prompt had.
        """
        for tip in reversed(self._tips):
            ending = self._endings[tip.node.index]
            if ending.mark == mark:
                return ending.response, tip.prompt_length
        return None

    def find_placement(self, request: TurnRequest, sent: Sequence[RequestPart]) -> Placement:
        """Find where a request belongs; raises Refused if the model's template refuses it."""
        thread, parent = request.hints.thread, request.hints.parent
        tips = [tip for tip in reversed(self._tips) if _may_continue(tip, thread)]
        found = self._find_continuation(tips, request, sent)
        if not tips and thread != MAIN:  # a fork repeats the history of the thread that made it
            forked = [tip for tip in reversed(self._tips) if tip.node.thread == (parent or MAIN)]
            found = self._find_continuation(forked, request, sent)
            found = _Continuation(found.after, found.new, found.prompt, None, None)
        ambiguous = False
        if found.after is None and thread == MAIN and tips:
            ambiguous, called = self._find_dispatch(request)
            thread, parent = called or (thread, parent)
        elif found.after is not None and thread == MAIN:
            thread, parent = found.after.node.thread, found.after.node.parent_thread
        branch = self._classify_branch(request, thread, found.after, tips)
        prompt = found.prompt or self._render(request)
        why, tip = self._find_break(request, branch, thread, found), found.tip
        differs = {} if why is None or tip is None else self._first_difference(tip, prompt)
        return Placement(
            after=found.after,
            new=found.new,
            prompt=prompt,
            thread=thread,
            parent_thread=parent,
            branch=branch,
            why=why,
            tools_changed=found.after is not None and found.after.tools != request.tools,
            ambiguous=ambiguous and branch == "main",
            differs=differs,
        )

    def choose_segment(self, place: Placement) -> int:
        """Return the chain that a turn at this place grows, or the number of a new one."""
        after = place.after
        grows = after is not None and self.graph.grows(after.node)
        if after is not None and grows and _same_thread_and_branch(after.node, place):
            return after.node.segment
        return self.graph.chains

    def add_turn(
        self,
        turn: Turn,
        place: Placement,
        news: Sequence[RequestPart],
        answer: Answer,
        tools: list[dict[str, Any]],
        mark: bytes,
        response: dict[str, Any],
    ) -> None:
        """Grow by a durable turn, whose request added the parts ``news``."""
        said = AssistantPart(
            tuple(call.id for call in answer.calls),
            may_vanish=not answer.calls and not answer.text.strip(),
        )
        after = place.after
        heard = PathNode(
            node=self.graph.add(turn),
            parts=(*(sent.part for sent in news), said),
            tools=tools if after is None or place.tools_changed else after.tools,
        )
        self._heard.append(heard)
        if after is not None and after in self._tips and _same_thread_and_branch(after.node, place):
            self._tips.remove(after)
            del self._endings[after.node.index]
        self._tips.append(heard)
        self._endings[turn.index] = TipState(mark, response, answer.calls)

    # --- where ---------------------------------------------------------------------------------

    def _find_continuation(
        self, tips: Sequence[PathNode], request: TurnRequest, sent: Sequence[RequestPart]
    ) -> _Continuation:
        """Return the turn after which a request goes on, and its prompt."""
        best: tuple[PathNode, list[PathNode], PrefixMatch] | None = None
        for tip in tips:
            path = [self._heard[node.index] for node in tip.node.path()]
            followed = match_prefix([heard.parts for heard in path], sent, request.pieces)
            if best is None or followed.depth > best[2].depth or (followed.why is None):
                best = tip, path, followed
            if followed.why is None:
                break
        if best is None:
            return _Continuation(None, 0, None, None, None)
        tip, path, followed = best
        why = followed.why
        if followed.new is not None:
            after = path[followed.depth - 1]
            prompt = self._bridge(after, request, followed.new)
            if isinstance(prompt, list):
                return _Continuation(after, followed.new.first, prompt, why, tip)
            why = why or prompt
        return _Continuation(None, 0, None, why, tip)

    def _bridge(
        self, after: PathNode, request: TurnRequest, new: RequestPart
    ) -> list[int] | HistoryBreak:
        """Return the prompt that continues a turn exactly, or why there is none."""
        held = after.node.tokens().tolist()
        bridged = self._renderer.bridge_to_next_turn(
            held[: after.prompt_length],
            held[after.prompt_length :],
            group_messages(request.pieces[new.first :]),
            tools=request.tools or None,
        )
        if bridged is None:
            return HistoryBreak("renderer", "the renderer cannot continue after this output")
        if bridged.token_ids[: len(held)] != held:
            return HistoryBreak(
                "renderer", "the renderer's continuation changes tokens already seen"
            )
        return bridged.token_ids

    def _render(self, request: TurnRequest) -> list[int]:
        try:
            return self._renderer.render_ids(
                group_messages(request.pieces),
                tools=request.tools or None,
                add_generation_prompt=True,
            )
        except ValueError as error:
            raise Refused(
                RefusalKind.INVALID, f"messages: the model's template refuses them: {error}"
            ) from error

    # --- whose, and what for -------------------------------------------------------------------

    def _find_dispatch(self, request: TurnRequest) -> tuple[bool, tuple[str, str | None] | None]:
        """Return thread and parent of a sub-agent that names no thread: its task is the argument
        of a dispatch that has not come back; and whether it may be one that cannot be told.
        """
        waiting = [
            (tip, call)
            for tip in self._tips
            for call in self._endings[tip.node.index].calls
            if call.name in SUBAGENT_TOOLS
            and tip.node.branch in ("main", "subagent")
            and any(isinstance(value, str) for value in call.arguments.values())
        ]
        given = "\n".join(piece.text for piece in request.pieces if piece.role == "user")
        tasks = [(tip, call) for tip, call in waiting if _dispatched_task(call) in given]
        if len(tasks) != 1:
            return bool(waiting) and _system_prompt(
                request.pieces
            ) not in self._system_prompts(), None
        tip, call = tasks[0]
        return False, (f"call:{call.id}", None if tip.node.thread == MAIN else tip.node.thread)

    def _system_prompts(self) -> set[bytes]:
        return {
            heard.parts[0].key
            for heard in self._heard
            if heard.node.parent is None and not isinstance(heard.parts[0], AssistantPart)
        }

    def _classify_branch(
        self, request: TurnRequest, thread: str, after: PathNode | None, tips: Sequence[PathNode]
    ) -> BranchKind:
        hints = request.hints
        if hints.request_class == "compaction" or (
            tips and _starts_with(request, -1, COMPACTION_PROMPTS)
        ):
            return "compaction"
        aside = request.structured or request.max_tokens == 1
        lost_tools = not request.tools and any(tip.tools for tip in tips) and after is None
        if hints.request_class == "side" or aside or lost_tools:
            return "side"
        named = hints.request_class == "subagent"
        return "subagent" if named or thread != MAIN else "main"

    def _find_break(
        self, request: TurnRequest, branch: BranchKind, thread: str, found: _Continuation
    ) -> HistoryBreak | None:
        """Return what became of the thread's history; None if nothing of it is left behind."""
        if branch in ("compaction", "side") or found.why is None or found.tip is None:
            return None
        if found.after is None and thread != found.tip.node.thread:
            return None  # a thread of its own
        said_so = request.hints.compacted or _starts_with(request, 0, COMPACTION_SUMMARIES)
        if said_so or self._ended_in_compaction(thread):
            return HistoryBreak("compaction", "a summary replaced the history", found.why.message)
        return found.why

    def _ended_in_compaction(self, thread: str) -> bool:
        """Whether the last thing this thread did was to sum up its history."""
        last = next((heard for heard in reversed(self._heard) if heard.node.thread == thread), None)
        return last is not None and last.node.branch == "compaction"

    def _first_difference(self, tip: PathNode, prompt: list[int]) -> dict[str, Any]:
        old, new = tip.node.tokens(), np.array(prompt, np.int32)
        at = common_prefix_length(old, new)

        def text(ids: np.ndarray) -> str:
            return self._tokenizer.decode(ids[at : at + EXCERPT_TOKENS].tolist())

        return {"token": at, "before": text(old), "after": text(new)}


@dataclass(frozen=True, slots=True)
class _Continuation:
    """The turn a request goes on after, as far as any."""

    after: PathNode | None
    new: int
    prompt: list[int] | None
    why: HistoryBreak | None
    tip: PathNode | None
    """The end of the path that was followed."""


def _may_continue(tip: PathNode, thread: str) -> bool:
    """Whether a request of this thread may continue a turn: sub-agents that name no thread speak
    as the main one.
    """
    own = tip.node.thread
    return own == thread or (thread == MAIN and own.startswith("call:"))


def _same_thread_and_branch(node: TurnNode, place: Placement) -> bool:
    return (node.thread, node.branch) == (place.thread, place.branch)


def _system_prompt(pieces: Sequence[Piece]) -> bytes | None:
    first = pieces[0]
    return first.key() if first.message == SYSTEM_PROMPT else None


def _dispatched_task(call: IssuedCall) -> str:
    """Return what a dispatch asks for: its longest text."""
    return max((text for text in call.arguments.values() if isinstance(text, str)), key=len)


def _starts_with(request: TurnRequest, which: int, markers: tuple[str, ...]) -> bool:
    """Whether a text of the first (0) or last (-1) user message begins with a marker."""
    users = [piece for piece in request.pieces if piece.role == "user"]
    return any(
        piece.kind == "text" and piece.text.lstrip().startswith(markers)
        for piece in users
        if piece.message == users[which].message
    )

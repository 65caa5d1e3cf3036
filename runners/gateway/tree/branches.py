"""The turn tree of a session, and the placement of each request in it: thread, parent turn, branch.

A request continues the turn whose whole history it repeats. One that repeats less forks off the
last turn that it does repeat, so that no token is rendered twice; one that repeats nothing is
rendered whole. Threads that the agent program names are kept apart; a request that names none
belongs to the main thread, unless it shows otherwise (``branch_names.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from runners.gateway.conversation import SYSTEM_PROMPT, Answer, Piece, TurnRequest
from runners.gateway.texts.texts import PromptIds, Texts
from runners.gateway.tree.branch_names import BranchName, BranchNames
from runners.gateway.tree.dispatches import CALL_THREAD
from runners.gateway.tree.growing_ids import GrowingIds
from runners.gateway.tree.prefix_matching import (
    AssistantPart,
    HistoryBreak,
    Part,
    PathMatcher,
    PrefixMatch,
    PreparedRequest,
    RequestPart,
    answer_part,
)
from runners.gateway.tree.recognition import begins_with_summary
from runners.records.graph import TurnGraph, TurnNode, common_prefix_length
from runners.records.record import MAIN_THREAD, BranchKind, IdArray, Turn

MAX_PATHS = 4
"""Turns whose path is kept in one piece: those that were added last, of the main agent and of
sub-agents at work.
"""
MAX_TIPS = 256
"""Ends of conversations that a request is compared with: the latest. An older one is rendered whole
if it is continued.
"""
SHOWN_NAMES = 5
"""Tools that a break names."""
EXCERPT_TOKENS = 12
"""Tokens shown of each side of a break."""


@dataclass(frozen=True, slots=True, eq=False)
class PathNode:
    """A turn of the tree, with what recognises it when a client sends it back."""

    node: TurnNode
    parts: tuple[Part, ...]
    """Those that its request added, then its own answer."""
    tools: list[dict[str, Any]]
    """One object along a path until the tools change: they are large."""
    shown: frozenset[str]
    """Names of the tools that the prompt shows."""

    @property
    def prompt_length(self) -> int:
        """Tokens before its output."""
        return self.node.length - len(self.node.output_ids)


@dataclass(frozen=True, slots=True)
class TipState:
    """The part of a turn that is needed only while it is the last of its chain."""

    fingerprint: bytes
    """Of the request that it answered."""
    response: dict[str, Any]
    """The body that answered it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a request in the tree, and its prompt."""

    parent: PathNode | None
    """The turn that it continues; None: it is rendered whole."""
    first_new_piece: int
    """Index of the first piece that is not in that turn's history."""
    prompt: IdArray
    """int32 [n]"""
    name: BranchName
    history_break: HistoryBreak | None
    """Set if some of the thread's history is left behind."""
    tools_changed: bool
    """Its tools differ from those of the turn that it continues."""
    request: TurnRequest
    """The request, with the ids that were issued where the program has rewritten them in what is
    new.
    """
    forged: int
    """Control tokens that the new content spells."""
    difference: dict[str, Any] = field(default_factory=dict)
    """The first token that differs from what is left behind, and the texts there: ``token``,
    ``before``, ``after``; of an edit those of the turn.
    """

    @property
    def thread(self) -> str:
        """Line of work that the turn belongs to."""
        return self.name.thread

    @property
    def branch(self) -> BranchKind:
        """Purpose of the turn."""
        return self.name.branch


@dataclass(frozen=True, slots=True)
class _Continuation:
    """The turn that a request goes on from, as far as there is any."""

    parent: PathNode | None
    first_new_piece: int
    prompt: IdArray | None
    history_break: HistoryBreak | None
    tip: PathNode | None
    """The end of the path that the request was compared with."""
    request: TurnRequest | None = None
    """See ``Placement.request``; None if it is as it came."""
    forged: int = 0


class Branches:
    """The turn tree of a session as its requests see it; grows by ``add_turn`` only."""

    def __init__(self, session_id: str, texts: Texts, changes: Counter[str] | None = None) -> None:
        """Begin a tree; ``changes`` counts what is done to the form of answers that come back."""
        self._changes: Counter[str] = Counter() if changes is None else changes
        self.graph = TurnGraph()
        self.pieces = 0
        """Parts that the tree holds."""
        self._names = BranchNames()
        self._session_id = session_id
        self._texts = texts
        self._nodes: list[PathNode] = []
        """By turn index."""
        self._tips: dict[PathNode, TipState] = {}
        """Turns that no turn of their thread and branch continues; oldest first."""
        self._paths: dict[PathNode, tuple[GrowingIds, IdArray]] = {}
        """Turns that were added last, the latest last, with the tokens of their paths, int32 [n]:
        they need not be put together again. A few only, since they are as many as all.
        """

    def find_answer(self, fingerprint: bytes) -> tuple[dict[str, Any], int] | None:
        """Return the body that answered this very request, and the tokens of its prompt; None if
        there is none, or if the conversation has gone on since.
        """
        for tip, state in reversed(self._tips.items()):
            # the same words after a sub-agent's report are another sub-agent's, not a retry
            if state.fingerprint == fingerprint and not self._names.has_ended(tip.node.thread):
                return state.response, tip.prompt_length
        return None

    async def find_placement(self, prepared: PreparedRequest) -> Placement:
        """Return the place of a request; raises Refused if the model's template refuses it.

        Turns that are added while a long text is at work are not looked at.
        """
        request = prepared.request
        thread = request.attribution.thread
        tips = [tip for tip in reversed(self._tips) if _may_continue(tip, thread)]
        found = await self._find_continuation(tips, prepared)
        if not tips and thread != MAIN_THREAD:
            # A new thread may be a fork, which repeats the history of the thread that started it.
            # What it does not repeat is no break: that history goes on in its own thread.
            origin = self._names.find_name(prepared, None).parent_thread or MAIN_THREAD
            forked = [tip for tip in reversed(self._tips) if tip.node.thread == origin]
            found = await self._find_continuation(forked, prepared)
            found = replace(found, history_break=None, tip=None)
        name = self._names.find_name(prepared, found.parent.node if found.parent else None)
        if found.parent is not None and self._texts.has_ids:
            hidden = _tool_names(request) - _shown_tools(found.parent, found, request)
            if hidden:
                found = _begin_anew(found, hidden)
        prompt, forged = found.prompt, found.forged
        if prompt is None:
            rendered = await self._texts.render(self._session_id, request)
            prompt, forged = rendered.ids, rendered.forged
        history_break, tip = self._find_break(prepared, name, found)
        return Placement(
            parent=found.parent,
            first_new_piece=found.first_new_piece,
            prompt=prompt,
            name=name,
            history_break=history_break,
            request=found.request or request,
            forged=forged,
            tools_changed=found.parent is not None and found.parent.tools != request.tools,
            difference=self._find_difference(history_break, tip, prompt)
            if history_break and tip
            else {},
        )

    def choose_segment(self, place: Placement) -> int:
        """Return the chain that a turn at this place grows, or the number of a new one."""
        parent = place.parent
        if parent is not None and self.graph.grows(parent.node) and _same_line(parent.node, place):
            return parent.node.segment
        return self.graph.chains

    def add_turn(
        self,
        turn: Turn,
        place: Placement,
        prepared: PreparedRequest,
        answer: Answer,
        response: dict[str, Any],
        sent: tuple[Piece, ...],
    ) -> None:
        """Add a durable turn: the request, its answer, the body that was made of the answer, and
        the pieces of that (``sent_pieces``).
        """
        first = bisect_left(prepared.parts, place.first_new_piece, key=_first_piece)
        new = [part.part for part in prepared.parts[first:]]
        parent = place.parent
        tools = prepared.request.tools if parent is None or place.tools_changed else parent.tools
        shown = _tool_names(place.request)
        if parent is not None:
            shown = _shown_tools(parent, place, place.request)
        added = PathNode(self.graph.add(turn), (*new, answer_part(sent, tools)), tools, shown)
        self._nodes.append(added)
        self._keep_path(added, place, turn.output_ids)
        self.pieces += len(added.parts)
        if parent is not None and parent in self._tips and _same_line(parent.node, place):
            del self._tips[parent]
        self._tips[added] = TipState(prepared.fingerprint, response)
        new_pieces = place.request.pieces[place.first_new_piece :]
        self._names.add_turn(added.node, place.name, prepared, new_pieces, answer)
        if len(self._tips) > MAX_TIPS:
            del self._tips[next(iter(self._tips))]

    # --- the turn that a request continues, and its prompt --------------------------------------

    async def _find_continuation(
        self, tips: Sequence[PathNode], prepared: PreparedRequest
    ) -> _Continuation:
        """Return the deepest turn that a request repeats; the first of ``tips`` wins a tie."""
        matcher = PathMatcher(prepared, self._names.has_issued)
        best: tuple[PathNode, PrefixMatch] | None = None
        for tip in tips:
            match = matcher.match(tip.node, self._parts_of)
            if best is None or match.rank > best[1].rank:
                best = tip, match
            if match.mismatch is None and not match.changed:
                break
        if best is None:
            return _Continuation(None, 0, None, None, None)
        self._names.add_rewritten_ids(matcher.rewritten_ids)
        self._changes.update(matcher.changes)
        tip, match = best
        mismatch = match.mismatch
        if match.next_part is not None:
            parent = self._nodes[tip.node.ancestor(match.depth).index]
            first = match.next_part.first_piece
            request = self._restore_ids(prepared, parent, first)
            made = await self._bridge(parent, request, first)
            if not isinstance(made, HistoryBreak):
                return _Continuation(parent, first, made.ids, mismatch, tip, request, made.forged)
            mismatch = mismatch or made
        return _Continuation(None, 0, None, mismatch, tip)

    def _parts_of(self, node: TurnNode) -> tuple[Part, ...]:
        return self._nodes[node.index].parts

    async def _bridge(
        self, parent: PathNode, request: TurnRequest, first_new_piece: int
    ) -> PromptIds | HistoryBreak:
        """Return the prompt that continues a turn token by token, or why there is none."""
        memory, path = self._paths.get(parent) or (GrowingIds(), parent.node.tokens())
        added = await self._texts.extend(
            self._session_id, path, parent.prompt_length, request, first_new_piece
        )
        if isinstance(added, str):
            return HistoryBreak("renderer", added)
        return PromptIds(memory.append(path, added.ids), added.forged)

    def _restore_ids(self, prepared: PreparedRequest, parent: PathNode, first: int) -> TurnRequest:
        """Return the request with the ids that were issued in the results among its new pieces, and
        in their calls.
        """
        request, own = prepared.request, 0
        """Calls among the new pieces, which keep their ids."""
        wanted: dict[int, int] = {}
        """Places of results, and how many calls before the new pieces theirs were made."""
        for each in prepared.parts[bisect_left(prepared.parts, first, key=_first_piece) :]:
            if isinstance(each.part, AssistantPart):
                own += len(each.part.tool_ids)
            elif isinstance(each.part.call, int) and each.part.call > own:
                wanted[each.first_piece] = each.part.call - own
        if not wanted:
            return request
        most = max(wanted.values())
        issued = self._latest_ids(parent, most)
        pieces = request.pieces
        before = (at for at in range(first - 1, -1, -1) if pieces[at].kind == "tool_call")
        calls = list(islice(before, most))
        changed: dict[int, Piece] = {}
        for at, ago in wanted.items():
            if ago <= len(issued) and pieces[at].tool_id != (own_id := issued[ago - 1]):
                # the call's piece too, by which a result finds the name of its tool
                for place in (at, calls[ago - 1]):
                    changed[place] = replace(pieces[place], tool_id=own_id)
        if not changed:
            return request
        return replace(request, pieces=[changed.get(at, each) for at, each in enumerate(pieces)])

    def _latest_ids(self, parent: PathNode, number: int) -> list[str]:
        """Return the ids of the last calls on the path of a turn, the latest first."""
        ids: list[str] = []
        node: TurnNode | None = parent.node
        while node is not None and len(ids) < number:
            for part in reversed(self._parts_of(node)):
                if isinstance(part, AssistantPart):
                    ids += reversed(part.tool_ids)
            node = node.parent
        return ids

    def _keep_path(self, added: PathNode, place: Placement, output_ids: IdArray) -> None:
        parent = place.parent
        memory, _ = (self._paths.pop(parent, None) if parent else None) or (GrowingIds(), None)
        self._paths[added] = memory, memory.append(place.prompt, output_ids)
        if len(self._paths) > MAX_PATHS:
            del self._paths[next(iter(self._paths))]

    # --- what is left behind --------------------------------------------------------------------

    def _find_break(
        self, prepared: PreparedRequest, name: BranchName, found: _Continuation
    ) -> tuple[HistoryBreak | None, PathNode | None]:
        """Return why some of the thread's history is left behind, None if none of it is, and the
        end of that history.
        """
        tip, broken = found.tip, found.history_break
        if name.branch in ("compaction", "side") or broken is None or tip is None:
            return None, None
        if found.parent is None and not _is_of(tip, name):
            # It was compared with another thread too: that one goes on, and only its own counts.
            own = [each for each in reversed(self._tips) if _is_of(each, name)]
            if not own:
                return None, None
            tip = own[0]
            matcher = PathMatcher(prepared, self._names.has_issued)
            broken = matcher.match(tip.node, self._parts_of).mismatch or broken
        request = prepared.request
        # what comes after a summary begins with it, however it goes on
        is_new = broken.kind not in ("edit", "tools") and begins_with_summary(request)
        is_stated = request.attribution.compacted or is_new
        if is_stated or name.evidence == "summary" or self._names.has_summary(name.thread):
            return HistoryBreak("compaction", "a summary replaced the history", broken.message), tip
        if name.evidence == "handoff" and broken.message == SYSTEM_PROMPT:
            reason = "another agent goes on with the conversation, under its own system prompt"
            return HistoryBreak("handoff", reason, broken.message), tip
        return broken, tip

    def _find_difference(
        self, history_break: HistoryBreak, tip: PathNode, prompt: IdArray
    ) -> dict[str, Any]:
        texts: dict[str, Any] = {}
        if history_break.kind == "edit":
            texts = {"before": history_break.before, "after": history_break.after}
        if not self._texts.has_ids:
            return texts
        before = tip.node.tokens()
        at = common_prefix_length(before, prompt)

        def text(ids: np.ndarray) -> str:
            return self._texts.decode(ids[at : at + EXCERPT_TOKENS].tolist())

        return {"token": at, "before": text(before), "after": text(prompt)} | texts


def _tool_names(request: TurnRequest) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in request.tools)


def _shown_tools(
    parent: PathNode, place: _Continuation | Placement, request: TurnRequest
) -> frozenset[str]:
    """Return the tools that a prompt shows which continues a turn: those that the turn's does, and
    those to which new results refer.
    """
    if parent.tools is request.tools or _tool_names(request) <= parent.shown:
        return parent.shown
    new = request.pieces[place.first_new_piece :]
    referred = frozenset(name for piece in new for name in piece.references)
    return parent.shown | (referred & _tool_names(request))


def _begin_anew(found: _Continuation, hidden: frozenset[str]) -> _Continuation:
    """Return what becomes of a continuation whose prompt does not show some tools."""
    names = ", ".join(sorted(hidden)[:SHOWN_NAMES])
    more = f" and {len(hidden) - SHOWN_NAMES} more" if len(hidden) > SHOWN_NAMES else ""
    left = HistoryBreak("tools", f"the prompt before does not show {names}{more}")
    history_break = found.history_break or (left if found.tip else None)
    return _Continuation(None, 0, None, history_break, found.tip)


def _first_piece(part: RequestPart) -> int:
    return part.first_piece


def _may_continue(tip: PathNode, thread: str) -> bool:
    """Return whether a request of this thread may continue a turn: sub-agents that name no thread
    come with the main thread's name.
    """
    own = tip.node.thread
    return own == thread or (thread == MAIN_THREAD and own.startswith(CALL_THREAD))


def _is_of(tip: PathNode, name: BranchName) -> bool:
    """Return whether a turn is of the work of a thread, not a side request or a summary."""
    return tip.node.thread == name.thread and tip.node.branch in ("main", "subagent")


def _same_line(node: TurnNode, place: Placement) -> bool:
    return (node.thread, node.branch) == (place.thread, place.branch)

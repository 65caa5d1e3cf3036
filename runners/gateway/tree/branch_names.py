"""The thread and the purpose of each request of a session.

The evidence, the strongest first: what the program states in its headers; the turn that a request
continues; calls of the session in the history that it brings; a summary that waits to be continued;
the text of a call that comes back; the program's own words for a title or a summary. A request
without any is the main agent's. So only new conversations are named by their text, and a policy,
which writes some of it, cannot move its own turns to another branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from runners.gateway.conversation import SYSTEM_PROMPT, Answer, Piece, TurnRequest
from runners.gateway.tree.dispatches import CALL_THREAD, Dispatch, Dispatches
from runners.gateway.tree.prefix_matching import AssistantPart, InputPart, PreparedRequest
from runners.gateway.tree.recognition import asks_for_summary, is_aside, sums_up
from runners.records.graph import TurnNode
from runners.records.record import MAIN_THREAD, BranchKind

MAX_REWRITTEN = 4096
"""Rewritten ids that are known, the latest."""
Evidence = Literal["own calls", "handoff", "summary", "dispatch"]
"""Sign that a new conversation is not a program's own: its history has calls of the session (or the
task of a sub-agent that is at work), the last of which may hand it over to another agent; it
follows a summary; or a call starts it.
"""
HANDOFF_TOOLS = ("transfer_to_", "handoff_to_", "hand_off_to_")
"""Beginnings of the names of tools by which an agent gives the conversation to another one."""


@dataclass(frozen=True, slots=True)
class BranchName:
    """The thread and the purpose of a request."""

    thread: str
    parent_thread: str | None
    branch: BranchKind
    evidence: Evidence | None = None
    ambiguous: bool = False
    """It may be a sub-agent's request without naming it; the main thread has it."""
    dispatched: tuple[dict[str, str], str] | None = None
    """The sub-agents of the call that started it, and the text to enter it under."""


@dataclass(frozen=True, slots=True)
class _Thread:
    name: str
    parent: str | None
    evidence: Evidence | None = None
    ambiguous: bool = False
    dispatched: tuple[dict[str, str], str] | None = None


class BranchNames:
    """Names the requests of a session; grows by ``add_turn`` only."""

    def __init__(self) -> None:
        self._threads: dict[str, str | None] = {}
        """Parents of all threads."""
        self._tooled: set[str] = set()
        """Threads whose program offered tools."""
        self._summed_up: list[str] = []
        """Threads whose last turn is a summary, the latest one last."""
        self._issuers: dict[str, str] = {}
        """Threads by the ids of their calls."""
        self._rewritten: dict[str, str] = {}
        """Ids that were issued, by what the program has made of them; the latest last."""
        self._said: set[int] = set()
        """Hashes of the texts that were sampled."""
        self._dispatches = Dispatches()

    def find_name(self, prepared: PreparedRequest, parent: TurnNode | None) -> BranchName:
        """Return the thread and the purpose of a request; ``parent``: the turn it continues."""
        request = prepared.request
        found = self._find_thread(prepared, parent)
        branch = self._classify(request, found, parent)
        return BranchName(
            thread=found.name,
            parent_thread=found.parent,
            branch=branch,
            evidence=found.evidence,
            ambiguous=found.ambiguous and branch == "main",
            dispatched=found.dispatched,
        )

    def has_summary(self, thread: str) -> bool:
        """Return whether the last turn of a thread summed up its history."""
        return thread in self._summed_up

    def has_ended(self, thread: str) -> bool:
        """Return whether a thread is that of a sub-agent whose report has come back."""
        return self._dispatches.has_ended(thread)

    def has_issued(self, call_id: str) -> bool:
        """Return whether an id is that of a call of the session's work."""
        return call_id in self._issuers

    def add_rewritten_ids(self, ids: Mapping[str, str]) -> None:
        """Add ids that a program has rewritten, with those that were issued."""
        self._rewritten |= ids
        while len(self._rewritten) > MAX_REWRITTEN:
            del self._rewritten[next(iter(self._rewritten))]

    def add_turn(
        self,
        node: TurnNode,
        name: BranchName,
        prepared: PreparedRequest,
        new_pieces: Sequence[Piece],
        answer: Answer,
    ) -> None:
        """Add a turn with this name; ``new_pieces`` are those that its parent lacks."""
        request, thread = prepared.request, node.thread
        if answer.text:
            self._said.add(hash(answer.text.strip()))
        self._threads[thread] = node.parent_thread
        self._dispatches.remove_answered(new_pieces)
        if node.branch == "side":
            return
        if request.tools:
            self._tooled.add(thread)
        if thread in self._summed_up:
            self._summed_up.remove(thread)
        if node.branch == "compaction":
            self._summed_up.append(thread)
            return
        if name.dispatched is not None:
            started, text = name.dispatched
            started.setdefault(text, thread)
        self._issuers |= dict.fromkeys((call.id for call in answer.calls), thread)
        self._dispatches.add(answer.calls, thread, _system_prompt(prepared), request.tools)

    def _find_thread(self, prepared: PreparedRequest, parent: TurnNode | None) -> _Thread:
        attribution = prepared.request.attribution
        if attribution.thread != MAIN_THREAD:
            known = attribution.parent in self._threads and attribution.parent != MAIN_THREAD
            return _Thread(attribution.thread, attribution.parent if known else None)
        if parent is not None:
            return _Thread(parent.thread, parent.parent_thread)
        if not self._threads or attribution.request_class is not None:
            return _Thread(MAIN_THREAD, None)
        return self._find_unnamed(prepared)

    def _find_unnamed(self, prepared: PreparedRequest) -> _Thread:
        """Return the thread of a new conversation that nobody names."""
        request, system_prompt = prepared.request, _system_prompt(prepared)
        evidence: Evidence
        if issuer := self._find_issuer(prepared):
            last = [piece.name for piece in request.pieces if piece.kind == "tool_call"][-1]
            evidence = "handoff" if last.startswith(HANDOFF_TOOLS) else "own calls"
            return _Thread(issuer, self._threads[issuer], evidence)
        waiting = [name for name in self._summed_up if _is_unnamed(name)]
        dispatch = self._dispatches.find(request, system_prompt, self._was_sampled)
        if dispatch is not None and _is_of_program(request, *dispatch):
            dispatch = None
        if dispatch is not None and MAIN_THREAD not in waiting:
            call, text = dispatch
            dispatcher = None if call.thread == MAIN_THREAD else call.thread
            evidence = "own calls" if text in call.started else "dispatch"
            name = call.name_thread(text)
            return _Thread(name, dispatcher, evidence, dispatched=(call.started, text))
        if waiting:
            name = MAIN_THREAD if MAIN_THREAD in waiting else waiting[-1]
            return _Thread(name, self._threads[name], "summary", dispatch is not None)
        return _Thread(
            MAIN_THREAD, None, ambiguous=self._dispatches.may_start(request, system_prompt)
        )

    def _was_sampled(self, text: str) -> bool:
        return hash(text) in self._said

    def _find_issuer(self, prepared: PreparedRequest) -> str | None:
        """Return the thread whose calls are the last in the history that a request brings."""
        for each in reversed(prepared.parts):
            if isinstance(each.part, AssistantPart):
                for call_id in reversed(each.part.tool_ids):
                    issued = self._rewritten.get(call_id, call_id)
                    issuer = self._issuers.get(issued)
                    if issuer is not None and _is_unnamed(issuer):
                        return issuer
        return None

    def _classify(
        self, request: TurnRequest, found: _Thread, parent: TurnNode | None
    ) -> BranchKind:
        stated = request.attribution.request_class
        tooled = any(
            name == found.name or (found.name == MAIN_THREAD and _is_unnamed(name))
            for name in self._tooled
        )
        if stated == "compaction" or (tooled and asks_for_summary(request)):
            return "compaction"
        if stated == "side" or request.max_tokens == 1:  # a probe samples one token
            return "side"
        if parent is not None:
            goes_on = parent.branch == "side" or (
                parent.branch == "compaction" and sums_up(request)
            )
            if goes_on and parent.thread == found.name:
                return parent.branch
        elif stated is None and found.evidence != "dispatch":
            if self._threads and sums_up(request):
                return "compaction"
            if is_aside(request) or (tooled and not request.tools and found.evidence is None):
                return "side"
        return "subagent" if stated == "subagent" or found.name != MAIN_THREAD else "main"


def _is_of_program(request: TurnRequest, call: Dispatch, text: str) -> bool:
    """Return whether a request is a program's own, though it has a text of a call: the title of a
    conversation whose task is passed on word for word. A policy could write such a prompt itself.
    """
    begins = is_aside(request) or (sums_up(request) and text not in call.started)
    words = request.pieces[0].text.strip()
    return begins and not any(each in words or words in each for each in call.texts)


def _is_unnamed(thread: str) -> bool:
    """Return whether requests of a thread come without its name."""
    return thread == MAIN_THREAD or thread.startswith(CALL_THREAD)


def _system_prompt(prepared: PreparedRequest) -> bytes | None:
    """Return what tells a request's system prompt from others, None if it has none."""
    opening = prepared.parts[0].part
    has_one = prepared.request.pieces[0].message == SYSTEM_PROMPT
    return opening.key if has_one and isinstance(opening, InputPart) else None

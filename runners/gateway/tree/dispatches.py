"""The tool calls of a session that may have started a sub-agent: a text that the policy gave to a
call comes back as a message of the user that opens a conversation.

Any call can start one: an agent may be offered as a tool of any name. A text may come back within a
longer one, if its tool is known to start sub-agents, or if the new conversation has tools: programs
also ask whether a command is safe before they run it. A call is out of the question once its result
has come back, unless its tool is known and no sub-agent has asked before: the program then runs it
in the background. The policy writes these texts, and could repeat in one what its own program will
send later: so a conversation under the system prompt and with the tools of the caller is never
taken for that of a sub-agent, and only what stands before anything that was sampled is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from runners.gateway.conversation import IssuedCall, Piece, TurnRequest

SUBAGENT_TOOLS = frozenset(
    {"agent", "task", "subagent", "sub_agent", "new_task", "spawn_agent", "spawn_subagent"}
    | {"delegate", "delegate_task", "delegate_to_agent", "dispatch_agent", "launch_agent"}
    | {"run_agent", "run_subagent", "start_agent", "call_agent", "use_subagents", "invoke_agent"}
)
"""Names of tools that start sub-agents, in lower case with underscores."""
CALL_THREAD = "call:"
"""Prefix of the threads that are named by the gateway: after the call that started the sub-agent.
"""
MIN_WRAPPED = 16
"""Characters of a text that is recognised within a longer one: a shorter one stands everywhere."""
MAX_WRAPPER = 20_000
"""Characters that a program may put around it."""
MAX_CALLS, MAX_TEXTS, MAX_KNOWN, MAX_SEARCHED = 1024, 64, 16, 64
"""Calls that are held, the latest; texts of each; those of them, and texts of a request, that are
searched for one in another. Together they bound the work that a policy can make.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """A call whose result has not come back."""

    call: IssuedCall
    thread: str
    """Of the turn that issued it."""
    system_prompt: bytes | None
    """Digest of its conversation's, None if it has none."""
    tools: list[dict[str, Any]]
    texts: tuple[str, ...]
    """Texts among its arguments, however deep, without blanks around them."""
    started: dict[str, str] = field(default_factory=dict)
    """Threads of the sub-agents that it started, by text."""

    @property
    def is_known(self) -> bool:
        """True if its tool is known to start sub-agents."""
        return self.call.name.lower().replace("-", "_") in SUBAGENT_TOOLS

    def name_thread(self, text: str) -> str:
        """Return the thread of the sub-agent that the call starts with one of its texts."""
        number = f":{len(self.started) + 1}" if self.started else ""
        return self.started.get(text) or f"{CALL_THREAD}{self.call.id}{number}"

    def could_start(self, request: TurnRequest, system_prompt: bytes | None) -> bool:
        """Return whether a request is under other instructions than the caller's."""
        return self.system_prompt != system_prompt or self.tools != request.tools


class Dispatches:
    """The calls of a session that wait for their results."""

    def __init__(self) -> None:
        self._waiting: dict[str, Dispatch] = {}
        """By call id, oldest first."""
        self._in_background: dict[str, Dispatch] = {}
        """Calls of known tools whose results came back before a sub-agent asked; the latest."""
        self._by_text: dict[str, dict[str, Dispatch]] = {}
        """All of these by text, then by call id."""

    def add(
        self,
        calls: Iterable[IssuedCall],
        thread: str,
        system_prompt: bytes | None,
        tools: list[dict[str, Any]],
    ) -> None:
        """Add the calls of a turn of some thread, whose conversation has this prompt and tools."""
        for call in calls:
            texts = tuple(dict.fromkeys(islice(_texts(call), MAX_TEXTS)))
            dispatch = Dispatch(call, thread, system_prompt, tools, texts)
            self._waiting[call.id] = dispatch
            for text in texts:
                self._by_text.setdefault(text, {})[call.id] = dispatch
        while len(self._waiting) > MAX_CALLS:
            self._forget(self._waiting.pop(next(iter(self._waiting))))

    def remove_answered(self, pieces: Iterable[Piece]) -> None:
        """Remove the calls whose results are among some pieces of a request."""
        for piece in pieces:
            if piece.kind != "tool_result" or piece.tool_id not in self._waiting:
                continue
            dispatch = self._waiting.pop(piece.tool_id)
            if not dispatch.is_known or dispatch.started:
                self._forget(dispatch)
                continue
            self._in_background[piece.tool_id] = dispatch
            if len(self._in_background) > MAX_KNOWN:
                self._forget(self._in_background.pop(next(iter(self._in_background))))

    def find(
        self,
        request: TurnRequest,
        system_prompt: bytes | None,
        was_sampled: Callable[[str], bool],
    ) -> tuple[Dispatch, str] | None:
        """Return the call that started the conversation which a request begins, and its text.

        Of several with this text, it is the first one that has not started a sub-agent with it.
        ``was_sampled`` tells whether an assistant's text is the policy's; programs also put words
        into its mouth.
        """
        found = [
            (dispatch, text)
            for dispatch, text in self._candidates(request, was_sampled)
            if dispatch.could_start(request, system_prompt)
        ]
        unused = (each for each in found if each[1] not in each[0].started)
        return next(unused, found[0] if found else None)

    def has_ended(self, thread: str) -> bool:
        """Return whether the call that started a sub-agent has its result."""
        call_id = thread.removeprefix(CALL_THREAD).partition(":")[0]
        goes_on = call_id in self._waiting or call_id in self._in_background
        return thread.startswith(CALL_THREAD) and not goes_on

    def may_start(self, request: TurnRequest, system_prompt: bytes | None) -> bool:
        """Return whether a tool that is known to start sub-agents may have started this one."""
        return any(dispatch.could_start(request, system_prompt) for dispatch in self._known())

    def _candidates(
        self, request: TurnRequest, was_sampled: Callable[[str], bool]
    ) -> list[tuple[Dispatch, str]]:
        whole: list[tuple[Dispatch, str]] = []
        for text in dict.fromkeys(_read_opening(request, was_sampled)):
            calls = list(islice(self._by_text.get(text, {}).values(), MAX_SEARCHED))
            calls.sort(key=lambda dispatch: dispatch.call.id in self._in_background)
            whole += [(dispatch, text) for dispatch in calls]
        if whole:
            return whole
        likely = [each for each in self._waiting.values() if each.is_known or request.tools]
        tasks = [(each, max(each.texts, key=len, default="")) for each in likely[-MAX_KNOWN:]]
        return [
            (dispatch, task)
            for dispatch, task in tasks
            if len(task) >= MIN_WRAPPED
            and any(
                len(text) <= len(task) + MAX_WRAPPER and task in text
                for text in islice(_read_opening(request, lambda _: True), MAX_SEARCHED)
            )
        ]

    def _known(self) -> list[Dispatch]:
        return [each for each in self._waiting.values() if each.is_known][-MAX_KNOWN:]

    def _forget(self, dispatch: Dispatch) -> None:
        for text in dispatch.texts:
            del self._by_text[text][dispatch.call.id]
            if not self._by_text[text]:
                del self._by_text[text]


def _read_opening(request: TurnRequest, was_sampled: Callable[[str], bool]) -> Iterator[str]:
    """Return the user's texts before the first call and the first text of the policy."""
    for piece in request.pieces:
        text = piece.text.strip()
        if piece.role == "assistant" and (piece.kind != "text" or was_sampled(text)):
            return
        if (piece.role, piece.kind) == ("user", "text"):
            yield text


def _texts(call: IssuedCall) -> Iterator[str]:
    """Return the texts among a call's arguments, without recursion: a policy nests as it likes."""
    left: list[Any] = [call.arguments]
    while left:
        value = left.pop()
        if isinstance(value, str):
            if text := value.strip():
                yield text
        elif isinstance(value, dict):
            left += reversed(value.values())
        elif isinstance(value, list):
            left += reversed(value)

"""Who speaks: what a request says about the thread of the agent program that sent it.

A thread is one line of work inside a session: the main agent, or one sub-agent. Programs that name
their threads are believed; what nobody names is the main thread's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runners.trajectory.record import MAIN_THREAD

MAIN = MAIN_THREAD

RequestClass = Literal["main", "subagent", "compaction", "side"]


@dataclass(frozen=True, slots=True)
class RequestAttribution:
    """What a request says about its place in the session; a dialect reads headers and body."""

    thread: str = MAIN
    """The program's own id of the thread, e.g. Claude Code's ``x-claude-code-agent-id``."""
    parent: str | None = None
    """Id of the thread that dispatched it, where that is not the main thread."""
    agent_type: str | None = None
    """What the program calls this kind of agent, e.g. ``Explore``."""
    request_class: RequestClass | None = None
    """What the program says the request is for; None: it says nothing."""
    compacted: bool = False
    """The program says that the history before this request was replaced by a summary."""

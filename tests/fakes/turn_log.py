"""A turn log in memory that a test can block or make fail."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from conf.errors import ExitCode
from runners.records.record import RolloutRecord, Turn, WireExchange
from runners.records.routing import TurnRouting
from runners.records.session_summary import SessionSummary
from runners.records.store.store_error import StoreError

HANG_S = 300
"""Limit of a wait on a thread, which pytest's ``timeout`` cannot end."""


class HeldTurnLog:
    """A log whose ``add_turn`` returns only while ``open`` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = threading.Event()
        """Set when a turn was passed to ``add_turn``."""
        self.holds_sessions = False
        """Whether ``add_session`` waits for ``open`` too."""
        self.full = False
        """Whether turns are refused as on a full disk."""
        self.refused: set[int] = set()
        """Turns that are refused, by index."""
        self.tries = 0
        """Turns that were passed to ``add_turn``."""
        self.together: list[int] = []
        """Numbers of turns that were stored together."""
        self.stored: list[Turn] = []
        self.session_ids: set[str] = set()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.rollouts: list[RolloutRecord] = []

    def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """Record a new session."""
        if self.holds_sessions:
            self.waiting.set()
            self.open.wait(timeout=HANG_S)
        if session_id in self.session_ids:
            raise StoreError(f"session {session_id} exists")
        self.session_ids.add(session_id)

    def add_turn(
        self, turn: Turn, routing: TurnRouting | None = None, wire: WireExchange | None = None
    ) -> None:
        """Record a turn once the test opens the log."""
        self.tries += 1
        self.waiting.set()
        if not self.open.wait(timeout=HANG_S):
            raise StoreError("the test never opened the log")
        if self.full:
            raise StoreError("the disk is full", ExitCode.SERVICE_GONE)
        if turn.index in self.refused:
            raise StoreError(f"turn {turn.index} is refused")
        self.stored.append(turn)

    def add_turns(
        self, turns: Sequence[tuple[Turn, TurnRouting | None, WireExchange | None]]
    ) -> None:
        """Record turns as ``add_turn`` does, all or none of them."""
        before = len(self.stored)
        try:
            for turn in turns:
                self.add_turn(*turn)
        except StoreError:
            del self.stored[before:]
            raise
        self.together.append(len(turns))

    def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns."""
        return [turn for turn in self.stored if turn.session_id == session_id]

    def session_summary(self, session_id: str) -> SessionSummary:
        """Return that of a session without turns."""
        return SessionSummary()

    def put_rollout(self, record: RolloutRecord) -> None:
        """Record a rollout."""
        self.rollouts.append(record)

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record an event."""
        self.events.append((kind, data))

    def close(self) -> None:
        """Nothing is open."""

"""Durable storage of turns: the run's store, owned by one thread.

Every call returns when its effect is on disk; the session awaits it before it answers the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from conf.errors import ExitCode
from runners.store.store_error import StoreError
from runners.trajectory.record import RolloutRecord, Turn
from runners.trajectory.routing import TurnRouting
from runners.trajectory.session_summary import SessionSummary
from runners.trajectory.wire import WireExchange

T = TypeVar("T")


class TurnLog(Protocol):
    """The part of a store that the gateway uses; every call returns when its effect is durable."""

    def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """Record a new session; raises if the id was ever used."""
        ...

    def add_turn(
        self, turn: Turn, routing: TurnRouting | None = None, wire: WireExchange | None = None
    ) -> None:
        """Record a turn, and its routing and its wire bodies if there are any."""
        ...

    def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns, in order."""
        ...

    def session_summary(self, session_id: str) -> SessionSummary:
        """Return the summary of a session's turns."""
        ...

    def put_rollout(self, record: RolloutRecord) -> None:
        """Add or overwrite a rollout."""
        ...

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record an event."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class AsyncTurnLog:
    """A turn log on its own thread, so that neither disk nor SQLite blocks the event loop.

    One thread, not a pool: SQLite connections must stay with the thread that opened them, and calls
    must take effect in the order in which they were made.
    """

    def __init__(self) -> None:
        self.broken = asyncio.Event()
        """Set once the disk has failed; see ``failure``."""
        self.failure: StoreError | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turn-log")
        self._log: TurnLog | None = None

    async def open(self, make: Callable[[], TurnLog]) -> None:
        """Open the log that ``make`` returns; it is called on the log's thread."""
        self._log = await self._run(make)

    async def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """See ``TurnLog.add_session``."""
        await self._run(lambda: self._opened.add_session(session_id, info))

    async def add_turn(
        self,
        turn: Turn,
        routing: TurnRouting | None = None,
        wire: Callable[[], WireExchange | None] = lambda: None,
    ) -> None:
        """See ``TurnLog.add_turn``; ``wire`` is called on the log's thread."""
        await self._run(lambda: self._opened.add_turn(turn, routing, wire()))

    async def turns(self, session_id: str) -> list[Turn]:
        """See ``TurnLog.turns``."""
        return await self._run(lambda: self._opened.turns(session_id))

    async def session_summary(self, session_id: str) -> SessionSummary:
        """See ``TurnLog.session_summary``."""
        return await self._run(lambda: self._opened.session_summary(session_id))

    async def put_rollout(self, record: RolloutRecord) -> None:
        """See ``TurnLog.put_rollout``."""
        await self._run(lambda: self._opened.put_rollout(record))

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """See ``TurnLog.event``."""
        await self._run(lambda: self._opened.event(kind, data))

    async def close(self) -> None:
        """Close the log after everything handed in is written."""
        if self._log is not None:
            await self._run(self._log.close)
        # without waiting: the thread has nothing left to do, and joining it would block the loop
        self._thread.shutdown(wait=False)

    @property
    def _opened(self) -> TurnLog:
        assert self._log is not None, "the turn log was not opened"
        return self._log

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except StoreError as error:
            if error.exit_code is ExitCode.SERVICE_GONE:  # the disk's fault, not the request's
                self.failure = self.failure or error
                self.broken.set()
            raise

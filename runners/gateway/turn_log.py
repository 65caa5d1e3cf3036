"""Where turns become durable: one thread that owns the run's store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from conf.errors import ExitCode
from runners.store.store_error import StoreError
from runners.trajectory.record import Turn
from runners.trajectory.routing import TurnRouting

T = TypeVar("T")


class TurnLog(Protocol):
    """What the gateway asks of a store; every call returns when its effect is durable."""

    def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """Record a new session; raises if the id was ever used."""
        ...

    def add_turn(self, turn: Turn, routing: TurnRouting | None = None) -> None:
        """Record a turn, and its routing if there is any."""
        ...

    def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns, in order."""
        ...

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record a notable thing."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class AsyncTurnLog:
    """A turn log on its own thread, so that neither disk nor SQLite holds up the event loop."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()
        """Set once the disk has failed; see ``failure``."""
        self.failure: StoreError | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._log: TurnLog | None = None

    async def open(self, make: Callable[[], TurnLog]) -> None:
        """Open the log, on the journal's thread: SQLite connections stay with the thread that made
        them.
        """
        self._log = await self._run(make)

    async def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """See ``TurnLog.add_session``."""
        await self._run(lambda: self._opened.add_session(session_id, info))

    async def add_turn(self, turn: Turn, routing: TurnRouting | None = None) -> None:
        """See ``TurnLog.add_turn``."""
        await self._run(lambda: self._opened.add_turn(turn, routing))

    async def turns(self, session_id: str) -> list[Turn]:
        """See ``TurnLog.turns``."""
        return await self._run(lambda: self._opened.turns(session_id))

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """See ``TurnLog.event``."""
        await self._run(lambda: self._opened.event(kind, data))

    async def close(self) -> None:
        """Close the log after everything handed in is written."""
        if self._log is not None:
            await self._run(self._log.close)
        self._thread.shutdown(wait=False)

    @property
    def _opened(self) -> TurnLog:
        assert self._log is not None, "the journal was not opened"
        return self._log

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except StoreError as error:
            if error.exit_code is ExitCode.SERVICE_GONE:  # the disk, not the request
                self.failure = self.failure or error
                self.broken.set()
            raise

"""Attempts in flight: the stage each is in and since when, for whoever asks what hangs.

Mutated by the attempts on the event loop; read from any thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from runners.diagnostics.call_graph import describe_pending


class AttemptProgress:
    """An attempt in flight; called with each stage that it enters."""

    __slots__ = (
        *("_begun", "_seconds", "last_sign", "pending", "session_id", "stage", "task", "where"),
    )

    def __init__(self, session_id: str, task: asyncio.Task[Any] | None) -> None:
        self.session_id = session_id
        self.task = task
        """Whose await chain tells what the attempt waits for."""
        self.stage = ""
        """The one it is in; empty before the first."""
        self.where = ""
        """The node it runs on; empty: in this process."""
        self.last_sign = time.monotonic()
        """When it last made progress."""
        self.pending = ""
        """What it waited for when its end came from outside: a deadline, a cancellation."""
        self._begun = self.last_sign
        self._seconds: dict[str, float] = {}

    def enter(self, stage: str) -> None:
        """Enter a stage."""
        now = time.monotonic()
        self._leave(now)
        self.stage, self._begun, self.last_sign = stage, now, now

    def timings(self) -> dict[str, float]:
        """Return the seconds spent in each stage so far."""
        seconds = dict(self._seconds)
        if self.stage:
            spent = time.monotonic() - self._begun
            seconds[self.stage] = seconds.get(self.stage, 0.0) + spent
        return seconds

    def record_pending(self) -> None:
        """Keep in ``pending`` what its task waits for."""
        self.pending = describe_pending(self.task) if self.task is not None else ""

    @asynccontextmanager
    async def deadline(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Do what ``asyncio.timeout`` does, and keep in ``pending`` what was waited for when it
        expired: the cancellation then unwinds it.
        """
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        # Timers run in the order of their times: this one before the other cancels the task.
        timer = loop.call_at(when - 1e-6, self.record_pending)
        try:
            async with asyncio.timeout_at(when) as timeout:
                yield timeout
        finally:
            timer.cancel()

    def _leave(self, now: float) -> None:
        if self.stage:
            self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + now - self._begun


class AttemptWatch:
    """The attempts in flight of a driver."""

    def __init__(self) -> None:
        self._flights: dict[AttemptProgress, None] = {}

    @contextmanager
    def attempt(self, session_id: str) -> Iterator[AttemptProgress]:
        """Keep an attempt on the list for the time of the block, which the current task runs."""
        task = None
        with suppress(RuntimeError):  # no loop: there is nothing to await
            task = asyncio.current_task()
        flight = AttemptProgress(session_id, task)
        self._flights[flight] = None
        try:
            yield flight
        finally:
            del self._flights[flight]

    def in_flight(self) -> list[AttemptProgress]:
        """Return those in flight, the oldest first."""
        return list(self._flights)

    def record_pending(self) -> None:
        """Have every attempt keep in ``pending`` what it waits for: before all are cancelled."""
        for flight in self.in_flight():
            flight.record_pending()

"""Records which stage each attempt in flight is in, and since when.

Mutated by the attempts on the event loop; read from any thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from runners.system.diagnostics.call_graph import describe_pending


class AttemptProgress:
    """Progress of an attempt in flight."""

    __slots__ = (
        *("_begun", "_seconds", "last_sign", "pending", "session_id", "stage", "task", "where"),
    )

    def __init__(self, session_id: str, task: asyncio.Task[Any] | None) -> None:
        self.session_id = session_id
        self.task = task
        """Task whose await chain shows what the attempt waits for."""
        self.stage = ""
        """Present stage; empty before the first."""
        self.where = ""
        """Node on which it runs; empty: this process."""
        self.last_sign = time.monotonic()
        """Monotonic time of its last progress."""
        self.pending = ""
        """Await chain at the moment of a deadline or a cancellation from outside."""
        self._begun = self.last_sign
        self._seconds: dict[str, float] = {}

    def enter(self, stage: str) -> None:
        """Enter a stage."""
        self._seconds = self.timings()
        self.stage, self._begun = stage, time.monotonic()
        self.last_sign = self._begun

    def timings(self) -> dict[str, float]:
        """Return the seconds spent in each stage so far."""
        seconds = dict(self._seconds)
        if self.stage:
            spent = time.monotonic() - self._begun
            seconds[self.stage] = seconds.get(self.stage, 0.0) + spent
        return seconds

    def record_pending(self) -> None:
        """Store in ``pending`` what its task waits for."""
        self.pending = describe_pending(self.task) if self.task is not None else ""

    @asynccontextmanager
    async def deadline(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Limit the block as ``asyncio.timeout`` does; when it expires, call ``record_pending``.

        It is called before the cancellation, which unwinds the await chain.
        """
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        # Timers run in the order of their times: this one comes before the one that cancels.
        timer = loop.call_at(when - 1e-6, self.record_pending)
        try:
            async with asyncio.timeout_at(when) as timeout:
                yield timeout
        finally:
            timer.cancel()


class AttemptWatch:
    """The attempts in flight of a driver."""

    def __init__(self) -> None:
        self._attempts: dict[AttemptProgress, None] = {}

    @contextmanager
    def attempt(self, session_id: str) -> Iterator[AttemptProgress]:
        """List an attempt while the block runs, which belongs to the current task."""
        task = None
        with suppress(RuntimeError):  # outside an event loop there is no task
            task = asyncio.current_task()
        attempt = AttemptProgress(session_id, task)
        self._attempts[attempt] = None
        try:
            yield attempt
        finally:
            del self._attempts[attempt]

    def in_flight(self) -> list[AttemptProgress]:
        """Return the attempts in flight, the oldest first."""
        return list(self._attempts)

    def record_pending(self) -> None:
        """Call ``record_pending`` for every attempt, before all of them are cancelled."""
        for attempt in self.in_flight():
            attempt.record_pending()

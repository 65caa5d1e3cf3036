"""End rollouts as soon as a service that they need has exited.

Rollouts that fail one after the other would be final, and a job that continues would keep them.
Cancelled ones do not count, so that it runs them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from runners.records.store import RunStore
from runners.system.processes import ServiceError

T = TypeVar("T")


class ServiceWatch:
    """The services of a worker; used on one event loop."""

    def __init__(self, store: RunStore, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """``end`` cancels rollouts that nobody waits for at the moment."""
        self._store = store
        self._end = end
        self._ending: asyncio.Task[None] | None = None
        self._error: ServiceError | None = None
        self._exited = asyncio.Event()

    def note_exit(self, error: ServiceError) -> None:
        """Record that a service has exited; the first one counts."""
        if self._error is None:
            self._error = error
            self._exited.set()
            self._ending = asyncio.create_task(self._end(), name="agentrl-end-groups")
            self._store.event("service_gone", {"message": str(error)})

    async def run(self, rollouts: Coroutine[Any, Any, T]) -> T:
        """Return the result of rollouts; raises ServiceError once a service has exited, and cancels
        them.
        """
        if self._error is not None:
            rollouts.close()
            raise self._error
        running = asyncio.create_task(rollouts, name="agentrl-gather")
        exited = asyncio.create_task(self._exited.wait())
        try:
            await asyncio.wait([running, exited], return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None:
                raise self._error
            return await running
        finally:
            for task in (running, exited):
                task.cancel()
            await asyncio.gather(running, exited, return_exceptions=True)

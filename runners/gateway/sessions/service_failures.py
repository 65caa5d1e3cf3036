"""Remember which requests of a session got no answer because a service failed.

An agent program that ends in an error says whose fault it was, but the policy's commands may speak
in its name. This is the gateway's own account: the attempt believes it, and not the program.
"""

from __future__ import annotations

from typing import Literal

from runners.records.record import MAIN_THREAD

FailedService = Literal["engine", "gateway"]


class ServiceFailures:
    """Failures that no later turn has made good; changed by their session."""

    def __init__(self) -> None:
        self._by_thread: dict[str, FailedService] = {}
        """Oldest first."""

    @property
    def latest(self) -> FailedService | None:
        """The service that failed last, None if every request since then was answered."""
        return next(reversed(self._by_thread.values()), None)

    def add(self, service: FailedService, thread: str = MAIN_THREAD) -> None:
        """Note that a request of a thread got no answer."""
        self._by_thread.pop(thread, None)
        self._by_thread[thread] = service

    def clear(self, thread: str) -> None:
        """Note a turn of a thread. One of the main thread makes good the failures of all: it has
        gone on, with the error that the sub-agent's failure was to it.
        """
        if thread == MAIN_THREAD:
            self._by_thread.clear()
        else:
            self._by_thread.pop(thread, None)

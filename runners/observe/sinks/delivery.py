"""Deliver entries to a foreign service from a thread of its own, so that the run never waits.

Invariant: nothing that the service does (fail, hang, refuse) delays the caller or raises at it; the
entries that wait are bounded, and each one that is not delivered is counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from conf.errors import error_text
from runners.records.printable import make_printable, shorten

MOST = 1000
"""Entries that wait; the oldest are dropped for newer ones."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Between tries while a service does not answer."""
CLOSE_S = 30.0
"""Time for what still waits when the run has ended."""
SHOWN_CHARS = 300

Entry = TypeVar("Entry")
Taken = TypeVar("Taken", contravariant=True)


class SinkError(Exception):
    """A sink did not take an entry."""


class EntryRefused(SinkError):
    """A sink will never take this entry: it is not sent again."""


class Ending(StrEnum):
    """The end of the run, which a service shows in its own words."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """By the user; it can be resumed."""
    FAILED = "failed"


class Sink(Protocol[Taken]):
    """A foreign service; all calls come from one thread, and may block."""

    def open(self) -> None:
        """Connect; called again after it has raised."""
        ...

    def take(self, entry: Taken) -> None:
        """Send an entry. Raises EntryRefused for one that is never taken; after any other exception
        it is sent again.
        """
        ...

    def close(self, ending: Ending) -> None:
        """End the connection."""
        ...


class Delivery(Generic[Entry]):
    """A queue and the thread that sends its entries to a sink, in order."""

    def __init__(
        self,
        name: str,
        sink: Sink[Entry],
        report: Callable[[str], None],
        *,
        most: int = MOST,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        """Start the thread. ``report`` is called in it, with the first failure."""
        self._name = name
        self._sink = sink
        self._report = report
        self._pauses_s = pauses_s
        self._waiting: deque[Entry] = deque()
        self._most = most
        self._changed = threading.Condition()
        self._closing = False
        self._ending = Ending.FINISHED
        self._told = False
        self.lost = 0
        """Entries that were refused, or dropped for newer ones."""
        # A daemon: an exit of the process does not wait for a service that hangs.
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> None:
        """Queue an entry; returns at once."""
        with self._changed:
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self.lost += 1
            self._waiting.append(entry)
            self._changed.notify()

    def close(self, ending: Ending, deadline_s: float = CLOSE_S) -> str:
        """Send what waits, each entry once more at most, and end; blocks. Return what was not
        delivered, in words, or "".
        """
        with self._changed:
            self._closing, self._ending = True, ending
            self._changed.notify()
        self._thread.join(deadline_s)
        with self._changed:
            missing = self.lost + len(self._waiting)
        if missing:
            return f"{self._name}: {missing:,} entries were not delivered"
        if self._thread.is_alive():
            return f"{self._name} did not end within {deadline_s:g} s"
        return ""

    def _run(self) -> None:
        opened, failures = False, 0
        while (entry := self._next()) is not None:
            try:
                if not opened:
                    self._sink.open()
                    opened = True
                self._sink.take(entry)
            except EntryRefused as error:
                self._tell(error)
                self._drop(entry, lost=1)
            # SystemExit: a library that gives up must not end this thread unseen.
            except (Exception, SystemExit) as error:
                self._tell(error)
                if not self._pause(failures):
                    break
                failures += 1
            else:
                failures = 0
                self._drop(entry)
        if opened:
            try:
                self._sink.close(self._ending)
            except (Exception, SystemExit) as error:
                self._tell(error)

    def _next(self) -> Entry | None:
        """Return the oldest entry, which stays in the queue; None at the end."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            return self._waiting[0] if self._waiting else None

    def _drop(self, entry: Entry, lost: int = 0) -> None:
        with self._changed:
            # Not if a newer one has pushed it out meanwhile: then it was counted as lost.
            if self._waiting and self._waiting[0] is entry:
                self._waiting.popleft()
                self.lost += lost
            elif not lost:
                self.lost -= 1

    def _pause(self, failures: int) -> bool:
        """Wait before the next try; return False if the run has ended, so that there is none."""
        until = time.monotonic() + self._pauses_s[min(failures, len(self._pauses_s) - 1)]
        with self._changed:
            if self._closing:
                return False
            while not self._closing and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
        return True

    def _tell(self, error: BaseException) -> None:
        if not self._told:
            self._told = True
            text = make_printable(shorten(error_text(error), SHOWN_CHARS))
            self._report(f"{self._name} fails, the run goes on: {type(error).__name__}: {text}")

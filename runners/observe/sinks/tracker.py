"""Keep a tracker's run in step with ours: the same one after a resume, each entry once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runners.observe.sinks.delivery import Ending, EntryRefused
from runners.observe.sinks.step_entries import Sent, StepEntry, read_sent, write_sent

TRACKERS = "trackers"
"""Directory of trackers' own files, in the run directory."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that is tracked."""

    name: str
    """Of its directory."""
    directory: Path
    """``trackers`` in the run directory."""
    config: Mapping[str, Any]
    """The resolved configuration; it holds no secrets."""


class Tracker(Protocol):
    """A client of a tracking service; its calls may block and raise."""

    keeps_at_once: bool
    """An entry outlives this process when ``log`` has returned, and not only after ``close``."""

    def open(self, run_id: str | None) -> str:
        """Begin a run, or go on with the one of this id; return its id."""
        ...

    def log(self, entry: StepEntry) -> None:
        """Send an entry; raises EntryRefused if it is never taken."""
        ...

    def close(self, ending: Ending) -> None:
        """End the run, which a resume opens again; raises what it does if entries may be lost."""
        ...


class TrackerSink:
    """Sends a tracker what it does not have yet (``delivery.Sink``)."""

    def __init__(self, tracker: Tracker, file: Path) -> None:
        """``file``: keeps what was sent."""
        self._tracker = tracker
        self._file = file
        self._sent = Sent("")

    def open(self) -> None:
        """Open the tracker's run; remember its id before anything is sent."""
        sent = read_sent(self._file)
        run_id = self._tracker.open(sent.run if sent else None)
        if sent is None:
            sent = Sent(run_id)
            write_sent(self._file, sent)
        self._sent = sent

    def take(self, entry: StepEntry) -> None:
        """Send an entry, unless the tracker has it."""
        if self._sent.has(entry):
            return
        try:
            self._tracker.log(entry)
        except EntryRefused:
            self._sent.refuse(entry)
            self._note()
            raise
        self._sent.add(entry)
        self._note()

    def _note(self) -> None:
        if self._tracker.keeps_at_once:
            write_sent(self._file, self._sent)

    def close(self, ending: Ending) -> None:
        """End the tracker's run."""
        self._tracker.close(ending)
        write_sent(self._file, self._sent)

"""Keep a tracker's run in step with ours: the same one after a resume, each entry once.

Invariant: nothing that the service does (fail, hang, refuse) delays the run or raises at it. A
thread of its own reads from the run's store what the tracker lacks, so nothing is queued: a service
that was away gets it with the next step, at the end, or from a resumed run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from conf.errors import error_text
from runners.observe.figures.metrics import finite_numbers
from runners.records.store import RunStore, StoreError
from runners.records.text import dumps, loads, make_printable, shorten
from runners.system.processes import atomic_file

TRACKERS = "trackers"
"""Directory of trackers' own files, in the run directory."""
CLOSE_S = 30.0
"""Time for what is still missing when the run has ended."""
SHOWN_CHARS = 300


class EntryRefused(Exception):
    """A tracker will never take this entry: it is not sent again."""


class Ending(StrEnum):
    """The end of the run, which a service shows in its own words."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """By the user; it can be resumed."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that is tracked."""

    name: str
    """Of its directory."""
    directory: Path
    """``trackers`` in the run directory."""
    config: Mapping[str, Any]
    """The resolved configuration; it holds no secrets."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """Figures of a step, or of an evaluation after it."""

    part: Literal["train", "eval"]
    step: int
    """Steps that the policy was trained for, this one included."""
    at: float
    """Unix seconds at which it was finished: the same whenever it is sent."""
    values: dict[str, float]
    """Finite numbers, by the names of ``metrics.jsonl``."""
    names: frozenset[str]
    """All names, also of figures of nothing."""

    @property
    def place(self) -> int:
        """Place among all entries of a run: an evaluation follows its step."""
        return 2 * self.step + (self.part == "eval")


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


@dataclass(slots=True)
class Sent:
    """The entries of a run that a tracker has, kept in the run directory: changed by its thread."""

    run: str
    """Id of the tracker's own run."""
    train: int = 0
    """The last step that was sent."""
    eval: int = -1
    """The last evaluation, by the steps of its policy."""


def read_sent(path: Path) -> Sent | None:
    """Return what is noted in a file, None if it is not there; raises OSError and ValueError."""
    try:
        noted = loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    try:
        return Sent(str(noted["run"]), int(noted["train"]), int(noted["eval"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} was not written by agentrl: {error}") from error


def list_missing(store: RunStore, sent: Sent) -> list[StepEntry]:
    """Return the entries that a tracker does not have, in order of their places."""
    entries = [
        _make_entry("train", row.step, row.finished_at, row.metrics)
        for row in store.steps(sent.train + 1)
        if row.finished_at is not None
    ]
    entries += [
        _make_entry(
            "eval", row.step, row.finished_at, {f"eval/{key}": v for key, v in row.result.items()}
        )
        for row in store.evaluations(sent.eval + 1)
    ]
    return sorted(entries, key=lambda entry: entry.place)


def _make_entry(
    part: Literal["train", "eval"], step: int, at: float, row: Mapping[str, Any]
) -> StepEntry:
    return StepEntry(part, step, at, finite_numbers(row), frozenset(row))


class TrackerThread:
    """Sends a tracker what the store has and it lacks, whenever it is woken."""

    def __init__(
        self, name: str, tracker: Tracker, run_dir: Path, report: Callable[[str], None]
    ) -> None:
        """Start the thread. ``report`` is called in it, with the first failure."""
        self._name = name
        self._tracker = tracker
        self._run_dir = run_dir
        self._file = run_dir / TRACKERS / f"{name}.json"
        self._report = report
        self._sent = Sent("")
        self._lost = 0
        """Entries that were refused; at the end also those that are missing."""
        self._told = False
        self._news = threading.Event()
        self._ending: Ending | None = None
        # A daemon: an exit of the process does not wait for a service that hangs.
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Say that the store has news, and return at once."""
        self._news.set()

    def close(self, ending: Ending, deadline_s: float = CLOSE_S) -> str:
        """Send what is missing, once more at most, and end; blocks. Return what was not delivered,
        in words, or "".
        """
        self._ending = ending
        self._news.set()
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            return f"{self._name} did not end within {deadline_s:g} s"
        return f"{self._name}: {self._lost:,} entries were not delivered" if self._lost else ""

    def _run(self) -> None:
        try:
            with RunStore.open(self._run_dir, read_only=True) as store:
                self._follow(store)
                self._lost += len(list_missing(store, self._sent))
        except StoreError as error:
            self._tell(error)

    def _follow(self, store: RunStore) -> None:
        opened, ending = False, None
        while ending is None:
            self._news.wait()
            self._news.clear()
            ending = self._ending  # read first: what came before it is sent below
            try:
                opened = opened or self._open(store)
                if opened:
                    self._send(store)
            # SystemExit: a library that gives up must not end this thread unseen.
            except (Exception, SystemExit) as error:
                self._tell(error)
        if opened:
            try:
                self._tracker.close(ending)
                self._note_sent()
            except (Exception, SystemExit) as error:
                self._tell(error)

    def _open(self, store: RunStore) -> bool:
        """Open the tracker's run if it lacks anything, and note its id before that is sent."""
        noted = read_sent(self._file)
        self._sent = noted or Sent("")
        if not list_missing(store, self._sent):
            return False
        run = self._tracker.open(self._sent.run if noted else None)
        if noted is None:
            self._sent.run = run
            self._note_sent()
        return True

    def _send(self, store: RunStore) -> None:
        for entry in list_missing(store, self._sent):
            try:
                self._tracker.log(entry)
            except EntryRefused as error:
                self._lost += 1
                self._tell(error)
            if entry.part == "train":
                self._sent.train = entry.step
            else:
                self._sent.eval = entry.step
            if self._tracker.keeps_at_once:
                self._note_sent()

    def _note_sent(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._file) as partial:
            partial.write_text(dumps(asdict(self._sent)), "utf-8")

    def _tell(self, error: BaseException) -> None:
        if not self._told:
            self._told = True
            text = make_printable(shorten(error_text(error), SHOWN_CHARS))
            self._report(f"{self._name} fails, the run goes on: {type(error).__name__}: {text}")

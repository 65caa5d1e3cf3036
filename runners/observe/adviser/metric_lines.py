"""The lines of ``metrics.jsonl``: each finished step's metrics, with the alarms after it.

Invariant: they are those that a new reader would return. Steps that can change no more are neither
read nor judged again: a long run costs a driver what is new.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from runners.observe.adviser.adviser import ALARMS, advise
from runners.observe.adviser.alarm import Alarm
from runners.observe.adviser.history import History, StepFacts, read_duplicates, read_steps
from runners.records.store import RunStore, StoreError

LATE_STEPS = 8
"""Steps for which figures may come after a step has ended, beside those by which rollouts may be
older than their training (``run.staleness``).
"""
STALENESS = 4
"""Of a run whose configuration does not say it."""


class MetricLines:
    """The lines of one run, as it goes on; a run that is taken back needs a new reader."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._config = store.config()
        staleness = self._config.get("run", {}).get("staleness")
        self._late = LATE_STEPS + (STALENESS if staleness is None else staleness)
        self._facts: dict[int, StepFacts] = {}
        """By step, in order."""
        self._alarms: dict[int, list[Alarm]] = {}
        self._duplicates: Mapping[str, Any] = {}
        self._unread = 0
        """First step whose line may be another than the one that ``read_tail`` returned."""

    def read(self) -> list[dict[str, Any]]:
        """Return all lines; raises StoreError."""
        self._update()
        return self._read(0)

    def read_step(self, step: int) -> dict[str, Any]:
        """Return the line of a finished step; raises StoreError."""
        self._update()
        line = next(iter(self._read(step)), None)
        if line is None or line["step"] != step:
            raise StoreError(f"{self._store.run_dir} has no finished step {step}")
        return line

    def read_tail(self) -> list[dict[str, Any]]:
        """Return the last lines: all that may have changed since it was called last; first all."""
        self._update()
        first, self._unread = self._unread, sys.maxsize
        return self._read(first)

    def latest_alarms(self) -> list[Alarm]:
        """Return the alarms after the last step that was read."""
        return self._alarms[max(self._alarms)] if self._alarms else []

    def _read(self, first: int) -> list[dict[str, Any]]:
        rows = self._store.metric_rows(first)
        if any(row["step"] not in self._alarms for row in rows):  # finished a moment ago
            self._update()
        return [
            {**row, ALARMS: [alarm.to_dict() for alarm in self._alarms[row["step"]]]}
            for row in rows
        ]

    def _update(self) -> None:
        """Read the steps that may have changed, and those that were finished later than any should
        be, and judge all from the first that has.
        """
        unknown = self._store.finished_steps() - self._facts.keys()
        first = min(unknown | {max(self._facts, default=0) - self._late})
        fresh = {facts.step: facts for facts in read_steps(self._store, first)}
        duplicates = read_duplicates(self._store)
        changed = [step for step, facts in fresh.items() if facts != self._facts.get(step)]
        if duplicates != self._duplicates:
            self._duplicates, changed = duplicates, [0]
        self._unread = min(self._unread, first, *changed)
        if not changed:
            return
        self._facts = dict(sorted((self._facts | fresh).items()))
        judged = [facts for facts in self._facts.values() if facts.outcomes]
        history = History(self._config, judged, duplicates)
        for step in self._facts:
            if step >= min(changed):
                self._alarms[step] = advise(history.until(step))

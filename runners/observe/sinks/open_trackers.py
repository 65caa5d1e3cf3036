"""The trackers of a campaign: W&B and MLflow, each fed from the store by a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from conf.schema import Config
from runners.observe.sinks.delivery import Delivery, Ending
from runners.observe.sinks.mlflow_tracker import MlflowTracker
from runners.observe.sinks.step_entries import EVAL, Part, Sent, StepEntry, read_sent, split_row
from runners.observe.sinks.tracker import TRACKERS, TrackedRun, Tracker, TrackerSink
from runners.observe.sinks.wandb_tracker import WandbTracker
from runners.records.store import RunStore

MOST_ENTRIES = 10_000
"""Of a tracker that wait: all that a long run has, when it is resumed; a dropped one is not sent by
a later resume either.
"""


class TrackerFeed:
    """Gives steps to all trackers of a run; used on the campaign's loop."""

    def __init__(self, config: Config, store: RunStore, report: Callable[[str], None]) -> None:
        """``report`` is called on the running loop with what went wrong, once for each tracker."""
        self._store = store
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._deliveries = [
            self._deliver(name, tracker) for name, tracker in make_trackers(config, store).items()
        ]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Send lines of ``metrics.jsonl``; what a tracker has already it gets no second time."""
        if not self._deliveries:
            return
        rows = list(rows)
        finished = read_finished(self._store, rows)
        for row in rows:
            for entry in split_row(row, finished):
                for delivery, queued in self._deliveries:
                    if not queued.has(entry):
                        queued.add(entry)
                        delivery.add(entry)

    async def close(self, ending: Ending) -> None:
        """End all of them, side by side."""
        ends = [asyncio.to_thread(each.close, ending) for each, _ in self._deliveries]
        for missing in await asyncio.gather(*ends):
            if missing:
                self._report(f"{missing}; a resumed run sends the steps that are missing")

    def _deliver(self, name: str, tracker: Tracker) -> tuple[Delivery[StepEntry], Sent]:
        """Start a tracker's delivery; return it with what the tracker has, or will have."""
        file = self._store.run_dir / TRACKERS / f"{name}.json"
        earlier = None
        with suppress(OSError, ValueError):  # which the delivery's own thread meets and reports
            earlier = read_sent(file)
        delivery = Delivery(name, TrackerSink(tracker, file), self._tell, most=MOST_ENTRIES)
        return delivery, earlier or Sent("")

    def _tell(self, text: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process exits
            self._loop.call_soon_threadsafe(self._report, text)


def make_trackers(config: Config, store: RunStore) -> dict[str, Tracker]:
    """Return the trackers that a configuration chooses, by name; nothing is connected yet."""
    run = TrackedRun(store.run_dir.name, store.run_dir / TRACKERS, store.config())
    trackers: dict[str, Tracker] = {}
    if config.observe.wandb.project is not None:
        trackers["wandb"] = WandbTracker(config.observe.wandb, run)
    if config.observe.mlflow.uri is not None:
        trackers["mlflow"] = MlflowTracker(config.observe.mlflow, run)
    return trackers


def read_finished(
    store: RunStore, rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[Part, int], float]:
    """Return the Unix seconds at which the steps and evaluations of lines of ``metrics.jsonl`` were
    finished.
    """
    places = (row.get(name) for row in rows for name in ("step", f"{EVAL}step"))
    named = [step for step in places if step is not None]
    if not named:
        return {}
    between = (min(named), max(named))
    found: dict[tuple[Part, int], float] = {}
    tables: tuple[tuple[Part, str], ...] = (("train", "step"), ("eval", "evaluation"))
    for part, table in tables:
        query = f"SELECT step, finished_at FROM {table} WHERE step BETWEEN ? AND ?"
        found |= {(part, step): at for step, at in store.query(query, between) if at is not None}
    return found

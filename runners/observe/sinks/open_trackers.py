"""The trackers of a campaign: W&B and MLflow, each fed from the store by a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from conf.schema import Config
from runners.observe.sinks.mlflow_tracker import MlflowTracker
from runners.observe.sinks.tracker import TRACKERS, Ending, TrackedRun, Tracker, TrackerThread
from runners.observe.sinks.wandb_tracker import WandbTracker
from runners.records.store import RunStore


class TrackerFeed:
    """Keeps all trackers of a run in step with its store; used on the campaign's loop."""

    def __init__(self, config: Config, store: RunStore, report: Callable[[str], None]) -> None:
        """``report`` is called on the running loop with what went wrong, once for each tracker."""
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._threads = [
            TrackerThread(name, tracker, store.run_dir, self._tell)
            for name, tracker in make_trackers(config, store).items()
        ]

    def wake(self) -> None:
        """Have what the store has and a tracker lacks sent there."""
        for each in self._threads:
            each.wake()

    async def close(self, ending: Ending) -> None:
        """End all of them, side by side."""
        ends = [asyncio.to_thread(each.close, ending) for each in self._threads]
        for missing in await asyncio.gather(*ends):
            if missing:
                self._report(f"{missing}; a resumed run sends the steps that are missing")

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

"""Follows a run that another process drives: polls its store and shows the driver's own view.

It only reads.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from runners.observe.live.dashboard import LiveView, Mode
from runners.observe.live.progress import Progress
from runners.observe.live.status import Status, read_store_status
from runners.observe.live.under_way import read_overlapped
from runners.records.outcome import Stage
from runners.records.store import RunStore, State

_POLL_S = 1.0
_LIVE_STATES = (State.CREATED, State.RUNNING)


def follow_run(
    run_dir: Path, console: Console, *, mode: Mode = "auto", every_s: float = _POLL_S
) -> Status:
    """Show a run until it has ended or its driver is gone; return its status then."""
    with RunStore.open(run_dir, read_only=True) as store:
        poller = RunPoller(store)
        status = poller.poll()
        with LiveView(poller.progress, mode, console):
            while status.state in _LIVE_STATES:
                time.sleep(every_s)
                status = poller.poll()
    return status


class RunPoller:
    """Keeps a ``Progress`` up to date with a run's store."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        config = store.config()
        self._run, self._eval = config.get("run", {}), config.get("eval", {})
        self._steps: set[int] = set()
        self._events = len(store.events())
        self.progress = Progress(store.run_dir.resolve().name, int(self._run.get("steps", 0)))

    def poll(self) -> Status:
        """Bring ``progress`` up to date; return the run's status."""
        progress, status = self.progress, read_store_status(self._store)
        if not progress.sampled_tokens:
            progress.sampled_tokens = (
                status.sampled_tokens
            )  # sampled before: not part of the present rate
        if fresh := status.sampled_tokens - progress.sampled_tokens:
            progress.add_tokens(fresh)
        progress.outcomes = Counter(status.outcomes)
        progress.evaluations = list(status.evaluations)
        progress.alarms = status.alarms
        progress.started_at = time.monotonic() - self._store.state().spent_s
        self._update_steps()
        self._update_phase(status)
        progress.in_flight = self._count_in_flight()
        for event in self._store.events()[self._events :]:
            data = ", ".join(f"{key} {value}" for key, value in event.data.items())
            progress.add_note(f"{event.kind}: {data}")
            self._events += 1
        return status

    def _update_steps(self) -> None:
        for row in self._store.steps():
            if row.state != "done" or row.step in self._steps:
                continue
            self._steps.add(row.step)
            self.progress.add_step_metrics(row.step, row.metrics)

    def _update_phase(self, status: Status) -> None:
        progress, done = self.progress, status.step_rollouts
        overlapped = read_overlapped(self._store)
        running = next((row for row in self._store.steps() if row.state != "done"), None)
        if status.state not in _LIVE_STATES:
            phase, size = status.state, 0
        elif status.benchmark:
            attempts = int(self._eval.get("attempts_per_task", 1))
            phase, size = "evaluation", attempts * int(self._eval.get("tasks") or 0)
            self._update_verdicts()
        elif overlapped is not None and done == overlapped.done and progress.step < status.steps:
            phase, size = "rollouts", overlapped.size  # also while a step is trained
        elif running is not None and overlapped is None:
            size = len(running.tasks) * int(self._run.get("rollouts_per_task", 0))
            phase = "rollouts" if done < size else "training"
        elif done:
            attempts = int(self._run.get("eval_attempts", 1))
            phase, size = "evaluation", attempts * int(self._run.get("eval_tasks", 0))
            done -= overlapped.done if overlapped is not None else 0
        else:
            phase, size = "starting" if not progress.outcomes else "between steps", 0
        if phase != progress.phase:
            progress.begin_phase(phase)
        if status.benchmark:
            done = sum(status.outcomes.values())
        progress.batch_done, progress.batch_size = done, max(size, done)

    def _update_verdicts(self) -> None:
        rows = self._store.query(
            "SELECT solved, count(*) FROM rollout WHERE counts GROUP BY solved"
        )
        names = {1: "solved", 0: "unsolved", None: "error"}
        self.progress.columns = Counter({names[solved]: count for solved, count in rows})

    def _count_in_flight(self) -> Counter[str]:
        """Return the number of attempts by stage, as far as the ledger tells stages apart."""
        ((opened, with_turns),) = self._store.query(
            """
            SELECT count(*), count(*) FILTER (WHERE EXISTS (
                SELECT 1 FROM turn WHERE session_id = name
            )) FROM ledger WHERE kind = 'session'
            """
        )
        ((grading,),) = self._store.query(
            "SELECT count(*) FROM ledger WHERE kind = 'sandbox' AND name LIKE '%-grade'"
        )
        return +Counter(
            {
                Stage.BOOT.value: opened - with_turns,
                Stage.HARNESS.value: with_turns,
                Stage.GRADE.value: grading,
            }
        )

"""How a run stands, read from its store alone; the run need not be alive."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from runners.observe.dashboard import duration
from runners.observe.progress import Curve
from runners.observe.summary import held_out
from runners.trajectory.run_state import State
from runners.trajectory.store import RunStore

KILLED = "killed"
"""Shown for a run that says it is running but whose driver is gone."""


@dataclass(frozen=True, slots=True)
class Status:
    """A run at a glance."""

    run_dir: str
    state: str
    """created, running, interrupted, failed, done, or killed."""
    message: str
    exit_code: int | None
    driver_pid: int | None
    driver_host: str | None
    created_at: float
    updated_at: float
    """Last sign of life."""
    steps: int
    """Steps to do."""
    steps_done: int
    step_rollouts: int
    """Rollouts done in the step (or evaluation) that is under way."""
    evaluations: Curve
    metrics: dict[str, Any]
    """Of the last finished step."""
    outcomes: dict[str, int]
    sampled_tokens: int
    attempts: int
    """All attempts, also those that another replaced."""

    @property
    def mend(self) -> str | None:
        """What to do, if anything."""
        if self.state in (KILLED, State.INTERRUPTED, State.FAILED):
            return f"agentrl run --resume {self.run_dir}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return asdict(self) | {"resume": self.mend}


def render(status: Status) -> Table:
    """Return a table for a terminal."""
    table = Table(
        title=Text(f"run {Path(status.run_dir).name}"), title_justify="left", show_header=False
    )
    table.add_column(style="bright_black")
    table.add_column(overflow="fold")
    style = {"done": "green", "running": "cyan"}.get(status.state, "yellow")
    table.add_row("state", f"[bold {style}]{status.state}[/]")
    if status.message:
        table.add_row("message", Text(status.message))
    if status.state == State.RUNNING:
        table.add_row("driver", f"process {status.driver_pid} on {status.driver_host}")
    table.add_row("steps", f"{status.steps_done} of {status.steps}")
    if status.step_rollouts:
        table.add_row("under way", f"{status.step_rollouts} rollouts done")
    for step, rate in status.evaluations:
        table.add_row(f"held-out after {step}", f"{rate:.1%}")
    for name in ("train/reward_mean", "train/solve_rate"):
        if (value := status.metrics.get(name)) is not None:
            table.add_row(name, f"{value:.3f}")
    for code, count in status.outcomes.items():
        table.add_row(code, f"{count:,}")
    table.add_row("tokens sampled", f"{status.sampled_tokens:,}")
    table.add_row("last sign of life", f"{duration(time.time() - status.updated_at)} ago")
    if status.mend:
        table.add_row("continue with", Text(status.mend))
    return table


def read_status(run_dir: Path) -> Status:
    """Read how the run in ``run_dir`` stands; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        state = store.state()
        dead = state.state is State.RUNNING and not state.driven
        done = [row for row in store.steps() if row.state == "done"]
        outcomes = store.query(
            "SELECT code, count(*) FROM rollout WHERE counts GROUP BY code ORDER BY 2 DESC, 1"
        )
        ((sampled, attempts),) = store.query(
            "SELECT coalesce(sum(sampled_tokens), 0), count(*) FROM rollout"
        )
        ((under_way,),) = store.query(
            """
            SELECT count(*) FROM rollout WHERE counts AND NOT EXISTS (
                SELECT 1 FROM step
                WHERE split = 'train' AND step = rollout.step AND finished_at IS NOT NULL
                UNION ALL SELECT 1 FROM evaluation WHERE split = 'eval' AND step = rollout.step
            )
            """
        )
        return Status(
            run_dir=str(run_dir),
            state=KILLED if dead else state.state,
            message=state.message,
            exit_code=state.exit_code,
            driver_pid=state.driver.pid if state.driver else None,
            driver_host=state.driver.host if state.driver else None,
            created_at=state.created_at,
            updated_at=max(state.updated_at, state.heartbeat_at or 0.0),
            steps=int(store.config().get("run", {}).get("steps", 0)),
            steps_done=len(done),
            step_rollouts=under_way,
            evaluations=held_out(store),
            metrics=done[-1].metrics if done else {},
            outcomes={code: count for code, count in outcomes},
            sampled_tokens=sampled,
            attempts=attempts,
        )

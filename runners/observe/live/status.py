"""Reads the status of a run from its store alone; the run need not be alive."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from conf.exact_tokens import describe_inexactness
from runners.observe.adviser.adviser import advise_run
from runners.observe.adviser.alarm import Alarm
from runners.observe.figures.curves import REWARD, SOLVE_RATE, Curve, read_evaluations
from runners.observe.figures.task_rates import count_tasks, read_task_rates
from runners.observe.figures.training_counts import (
    GroupCounts,
    TokenCounts,
    TrainingCounts,
    count_training,
)
from runners.observe.live.dashboard import format_duration
from runners.observe.live.under_way import count_under_way
from runners.records.checkpoints import CHECKPOINTS, find_best
from runners.records.store import KILLED, RunStore, State
from runners.records.text import make_printable
from runners.system.diagnostics import newest_diagnoses
from runners.system.processes.ledger import Ledger, ResourceKind, is_gone

TASK_CHECK = "tasks"
"""Instead of a benchmark's name: the run checks tasks."""
_LEAKS_SHOWN = 5
_DIAGNOSES_SHOWN = 3
_TAMPERED_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Leak:
    """A resource in the ledger that no process owns; it may have ended by itself since."""

    kind: ResourceKind
    name: str
    age_s: float


@dataclass(frozen=True, slots=True)
class PartlySolved:
    """Rollouts that partial credit pays a part."""

    split: str
    """"train" or "eval"."""
    graded: int
    """All rollouts of the split that have a verdict."""
    count: int
    mean_share: float | None
    """Mean share of their fail-to-pass tests that pass; None without any."""

    def __str__(self) -> str:
        """Return it as the text of a line."""
        share = f", {self.mean_share:.0%} of their tests on average" if self.mean_share else ""
        return f"{self.count:,} of {self.graded:,} graded{share}"


@dataclass(frozen=True, slots=True)
class Status:
    """Summary of a run's state."""

    run_dir: str
    benchmark: str | None
    """Benchmark of an evaluation; None for a campaign."""
    state: str
    """created, running, interrupted, failed, done, or killed."""
    message: str
    exit_code: int | None
    driver_pid: int | None
    driver_host: str | None
    created_at: float
    updated_at: float
    """Time of the last write or heartbeat."""
    steps: int
    """Steps to do."""
    steps_done: int
    step_rollouts: int
    """Rollouts done in the step (or evaluation) that is under way; with ``run.overlap`` in all."""
    evaluations: Curve
    metrics: dict[str, Any]
    """Of the last finished step."""
    outcomes: dict[str, int]
    sampled_tokens: int
    """Of all attempts: of evaluations, retries and the step under way, too."""
    attempts: int
    """All attempts, those that were retried included."""
    diagnoses: list[str]
    """Paths of the newest diagnoses, newest first."""
    leaks: list[Leak]
    """Resources that a dead driver left, which a resume ends, and sandboxes and sessions that
    outlived their attempt.
    """
    groups: GroupCounts = field(default_factory=GroupCounts)
    """Of finished steps, as the run's summary has them."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Likewise."""
    tampered: dict[str, str] = field(default_factory=dict)
    """The last rollouts whose patch tampered with its tests, with the evidence, newest first."""
    partly_solved: list[PartlySolved] = field(default_factory=list)
    """By split; empty where the run pays no partial credit."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """Result of the last evaluation: ``solve_rate``, ``pass@k``, counts."""
    best_checkpoint: dict[str, Any] | None = None
    """That with the best evaluation: ``step``, ``solve_rate``, ``path``; None without one."""
    set_aside: dict[str, int] = field(default_factory=dict)
    """Number of tasks that were set aside when the run began, by the section that names them."""
    inexact: str | None = None
    """A line about what the engine's turns do not record; None if they are exact."""
    tasks: dict[str, int] = field(default_factory=dict)
    """Training tasks ``tried``, and how many of them were ``never_solved`` and ``always_solved`` in
    the last step that worked on each; empty before the first rollout is graded.
    """
    alarms: list[Alarm] = field(default_factory=list)
    """Findings of the adviser after the last finished step."""
    gateway: bool = False
    """It holds the sessions of a gateway that serves alone."""

    @property
    def resume_command(self) -> str | None:
        """Command that continues the run; None if there is nothing to continue."""
        if not self.gateway and self.state in (KILLED, State.INTERRUPTED, State.FAILED):
            command = f"eval {self.benchmark}" if self.benchmark else "run"
            if self.benchmark == TASK_CHECK:
                command = "tasks check"
            return f"agentrl {command} --resume {self.run_dir}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return asdict(self) | {"resume": self.resume_command}


def render(status: Status) -> Table:
    """Return a table for a terminal."""
    table = Table(
        title=Text(f"run {Path(status.run_dir).name}"), title_justify="left", show_header=False
    )
    table.add_column(style="bright_black")
    table.add_column(overflow="fold")
    style = {"done": "green", "running": "cyan"}.get(status.state, "yellow")
    table.add_row("state", Text(status.state, f"bold {style}"))
    if status.message:
        table.add_row("message", Text(make_printable(status.message)))
    if status.state == State.RUNNING:
        table.add_row("driver", f"process {status.driver_pid} on {status.driver_host}")
    if status.gateway:
        table.add_row("sessions of", "a gateway without a campaign")
    for alarm in status.alarms:
        table.add_row(f"alarm: {alarm.name}", Text(make_printable(alarm.evidence), style="red"))
        table.add_row("  fix", Text(make_printable(alarm.fix)))
    if status.benchmark == TASK_CHECK:
        table.add_row("check of", "tasks, see calibration.json")
    elif status.benchmark:
        table.add_row("evaluation of", status.benchmark)
        table.add_row("rollouts done", f"{sum(status.outcomes.values()):,}")
    else:
        table.add_row("steps", f"{status.steps_done} of {status.steps}")
        if status.step_rollouts:
            table.add_row("under way", f"{status.step_rollouts} rollouts done")
    for step, rate in status.evaluations:
        table.add_row(f"held-out after {step}", f"{rate:.1%}")
    for name, value in status.evaluation.items():
        if name.startswith(("pass@", "solve_rate/")) and value is not None:
            table.add_row(f"held-out {name}", f"{value:.1%}")
    if (best := status.best_checkpoint) is not None:
        table.add_row("best checkpoint", f"{Path(best['path']).name} ({best['solve_rate']:.1%})")
    by_set = [name for name in status.metrics if name.startswith(f"{SOLVE_RATE}/")]
    for name in (REWARD, SOLVE_RATE, *by_set):
        if (value := status.metrics.get(name)) is not None:
            table.add_row(name, f"{value:.3f}")
    if tasks := status.tasks:
        of_them = f"{tasks['never_solved']:,} never, {tasks['always_solved']:,} always solved"
        table.add_row("training tasks", f"{tasks['tried']:,} tried; when last tried, {of_them}")
    for code, count in status.outcomes.items():
        table.add_row(code, f"{count:,}")
    for each in status.partly_solved:
        table.add_row(f"solved in part ({each.split})", str(each))
    for name, evidence in status.tampered.items():
        table.add_row(f"tampered: {name}", Text(make_printable(evidence), style="red"))
    for name in ("signs", "unverified"):
        if found := status.metrics.get(f"cheating/{name}"):
            table.add_row(f"cheating/{name}", f"{found:,} in the last step")
    for key, number in status.set_aside.items():
        table.add_row("set aside", f"{number:,} tasks by {key}.exclude")
    if status.steps_done:
        for name, value in TrainingCounts(status.groups, status.tokens).rows():
            table.add_row(name, value)
    table.add_row("tokens of all attempts", f"{status.sampled_tokens:,}")
    if status.inexact:
        table.add_row("tokens", Text(status.inexact, style="yellow"))
    for leak in status.leaks[:_LEAKS_SHOWN]:
        table.add_row("leak", f"{leak.kind} {leak.name}, {format_duration(leak.age_s)} old")
    if (more := len(status.leaks) - _LEAKS_SHOWN) > 0:
        table.add_row("", f"and {more:,} more")
    for path in status.diagnoses:
        table.add_row("diagnosis", path)
    table.add_row("last update", f"{format_duration(time.time() - status.updated_at)} ago")
    if status.resume_command:
        table.add_row("continue with", Text(status.resume_command))
    return table


def read_status(run_dir: Path) -> Status:
    """Return the status of the run in ``run_dir``; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        return read_store_status(store)


def read_store_status(store: RunStore, *, alarms: Sequence[Alarm] | None = None) -> Status:
    """Return the status of the run of an open store; ``alarms``: those after its last finished
    step, if they are known.
    """
    state, config = store.state(), store.config()
    done = [row for row in store.steps() if row.state == "done"]
    counts = count_training(done)
    tampered = store.query(
        "SELECT rollout_id, message FROM rollout WHERE rowid IN "
        "(SELECT rowid FROM rollout WHERE counts = 1 AND code = 'policy.tampered') "
        f"ORDER BY step DESC, rollout_id DESC LIMIT {_TAMPERED_SHOWN}"
    )
    ((sampled, attempts),) = store.query(
        "SELECT coalesce(sum(sampled_tokens), 0), count(*) FROM rollout"
    )
    return Status(
        run_dir=str(store.run_dir),
        gateway=state.info.get("gateway", False),
        benchmark=state.info.get("benchmark"),
        state=state.seen,
        message=state.message,
        exit_code=state.exit_code,
        driver_pid=state.driver.pid if state.driver else None,
        driver_host=state.driver.host if state.driver else None,
        created_at=state.created_at,
        updated_at=max(state.updated_at, state.heartbeat_at or 0.0),
        steps=int(config.get("run", {}).get("steps", 0)),
        steps_done=len(done),
        step_rollouts=count_under_way(store),
        evaluations=read_evaluations(store),
        metrics=done[-1].metrics if done else {},
        outcomes=read_outcomes(store),
        sampled_tokens=sampled,
        attempts=attempts,
        diagnoses=[str(path) for path in newest_diagnoses(store.run_dir, _DIAGNOSES_SHOWN)],
        groups=counts.groups,
        tokens=counts.tokens,
        leaks=_leaks(store, config.get("rollout", {}).get("deadlines", {})),
        tampered={name: message for name, message in tampered},
        partly_solved=_count_partly_solved(store) if _pays_parts(config) else [],
        evaluation=evaluations[-1].result if (evaluations := store.evaluations()) else {},
        best_checkpoint=read_best(store),
        set_aside={
            noted.data["key"]: number
            for noted in store.events("dataset")
            if (number := noted.data.get("set_aside", 0))
        },
        inexact=describe_inexactness(config),
        alarms=advise_run(store) if alarms is None else list(alarms),
        tasks=count_tasks(rates) if (rates := read_task_rates(store)) else {},
    )


def read_outcomes(store: RunStore) -> dict[str, int]:
    """Return the number of rollouts by outcome, the most frequent first."""
    # "counts = 1": of "counts" alone SQLite takes the index of ids, and reads each row besides
    found = store.query(
        "SELECT code, count(*) FROM rollout WHERE counts = 1 GROUP BY code ORDER BY 2 DESC, 1"
    )
    return {code: count for code, count in found}


def read_best(store: RunStore) -> dict[str, Any] | None:
    """Return ``step``, ``solve_rate`` and ``path`` of the checkpoint with the best evaluation."""
    rates = dict(read_evaluations(store))
    best = find_best(store.run_dir / CHECKPOINTS, rates)
    if best is None:
        return None
    return {"step": best.step, "solve_rate": rates[best.step], "path": str(best.path)}


def _pays_parts(config: dict[str, Any]) -> bool:
    """Return whether a stored configuration pays partial credit."""
    return bool(config.get("reward", {}).get("partial_credit"))


def _count_partly_solved(store: RunStore) -> list[PartlySolved]:
    rows = store.query(
        """
        SELECT split, count(*), coalesce(sum(in_part), 0), avg(CASE WHEN in_part THEN share END)
        FROM (
            SELECT split, json_extract(verdict, '$.solved_in_part') AS in_part,
                json_extract(verdict, '$.fail_to_pass_share') AS share
            FROM rollout WHERE counts AND solved IS NOT NULL
        ) GROUP BY split ORDER BY split DESC
        """
    )
    return [PartlySolved(*row) for row in rows]


def _leaks(store: RunStore, deadlines: dict[str, float]) -> list[Leak]:
    limit_s = deadlines["guard_s"] + deadlines["teardown_s"] if "guard_s" in deadlines else None
    return [
        Leak(entry.kind, entry.name, round(time.time() - entry.entered_at, 1))
        for entry in Ledger(store).find_leaks(limit_s)
        if not is_gone(entry)
    ]

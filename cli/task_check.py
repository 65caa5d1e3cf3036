"""Check tasks before they train: for ``agentrl tasks check`` and ``agentrl eval … --gold``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.invocation import Invocation, stderr
from cli.measurement import run_measurements
from cli.report import offer_report

if TYPE_CHECKING:
    from runners.campaigns.jobs import Job

NO_GATEWAY = ("gateway.host=0.0.0.0", "gateway.port=1", "gateway.public_url=http://gateway:1")
"""An address that remote sandboxes could reach: nothing is started, so none is needed."""


def check_tasks(lines: list[str], resume: Path | None, invocation: Invocation) -> int:
    """Check the tasks of a configuration, or go on with the check in ``resume``; return the exit
    code.
    """
    from runners.campaigns.evaluation.benchmarks import TASKS
    from runners.campaigns.execution import check_evaluations
    from runners.campaigns.jobs import new_jobs, resumed_job

    if resume is not None:
        jobs = [resumed_job(resume, lines, benchmark=TASKS.name)]
    else:
        jobs = new_jobs(TASKS.overrides([*NO_GATEWAY, *lines]), kind="tasks-check")
    check_evaluations(jobs, TASKS)
    return run_measurements(jobs, invocation, _check, "tasks check")


def is_task_check(run_dir: Path) -> bool:
    """Return whether a run checks tasks; raises StoreError."""
    from runners.observe.live import TASK_CHECK
    from runners.records.store import RunStore

    with RunStore.open(run_dir, read_only=True) as store:
        return bool(store.state().info.get("benchmark") == TASK_CHECK)


def _check(job: Job, invocation: Invocation) -> tuple[dict[str, Any], bool]:
    """Run a check; return its document, and whether the user asked to stop."""
    from runners.campaigns.evaluation.report import render_calibration
    from runners.campaigns.execution import execute_calibration

    invocation.run_dir = job.run_dir
    result = execute_calibration(job)
    found = result.document
    stderr().print(render_calibration(found))
    offer_report(job.run_dir, invocation)
    path = getattr(job.config.task, "path", None)
    if found["fit"] and path is not None and not result.end.stop_requested:
        words = ["task=jsonl", f"task.path={path}"]
        if found["set_aside"]:
            words.append(f"task.exclude={job.run_dir / 'calibration.json'}")
        stderr().print(f"next: agentrl run --dry-run {shlex.join(words)}", soft_wrap=True)
    document = {"run_dir": str(job.run_dir), **found, **result.end.document()}
    return document, result.end.stop_requested

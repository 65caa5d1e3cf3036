"""Run the jobs of an evaluation, or of a check of tasks, and show how each ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from cli.invocation import Invocation, can_resume, print_json, report_error, stderr

if TYPE_CHECKING:
    from runners.campaigns.jobs import Job

Measure = Callable[["Job", Invocation], tuple[dict[str, Any], bool]]
"""Runs a job; returns its document, and whether the user asked to stop."""


def run_measurements(
    jobs: list[Job], invocation: Invocation, measure: Measure, command: str
) -> int:
    """Run one job, or the jobs of a sweep; return the exit code. ``command`` continues a job."""
    if len(jobs) > 1:
        return _run_sweep(jobs, invocation, measure)
    (job,) = jobs
    document, _ = measure(job, invocation)
    if document["message"]:
        report_error(document["message"])
    # every task has been checked: that some are unfit does not change
    settled = document["exit_code"] == 1 and document.get("not_graded") == {}
    if can_resume(document["exit_code"]) and not settled:
        stderr().print(f"continue with: agentrl {command} --resume {job.run_dir}", soft_wrap=True)
    if invocation.json:
        print_json(document)
    else:
        typer.echo(job.run_dir)
    return int(document["exit_code"])


def _run_sweep(jobs: list[Job], invocation: Invocation, measure: Measure) -> int:
    from cli.sweep import run_sweep
    from runners.campaigns.evaluation.report import render_comparison

    def run_one(job: Job) -> tuple[dict[str, Any], bool]:
        return measure(job, invocation)

    return run_sweep(jobs, invocation, run_one, render_comparison)

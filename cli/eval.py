"""``agentrl eval``: measure a policy on a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import ConfigDir, Json, Overrides, examples, split_command
from cli.invocation import (
    Invocation,
    can_resume,
    print_json,
    report_error,
    stderr,
)
from cli.report import offer_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from runners.campaigns.evaluation.benchmarks import Benchmark
    from runners.campaigns.jobs import Job

    Measure = Callable[[Benchmark, Job, Invocation], tuple[dict[str, Any], bool]]

EXAMPLES = examples(
    "agentrl eval bugfix",
    "agentrl eval bugfix model.path=runs/20260101-120000-linear/checkpoints/step-000060",
    "agentrl eval bugfix eval.attempts_per_task=4 eval.tasks=125 faults=chaos",
    "agentrl eval swebench task.path=SWE-bench/SWE-bench_Verified eval.ids='django__*' --gold",
    "agentrl eval bugfix sampling.eval_temperature=0,0.7",
    "agentrl eval bugfix --resume runs/20260101-120000-eval-bugfix eval.attempts_per_task=8",
)


def evaluate(
    context: typer.Context,
    benchmark: Annotated[
        str,
        typer.Argument(
            metavar="BENCHMARK",
            help="What to measure: bugfix, swebench.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    _config_dir: ConfigDir = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue the evaluation in this directory: run what failed and what was not run. "
            "KEY=VALUE may raise eval.tasks and eval.attempts_per_task.",
            show_default=False,
        ),
    ] = None,
    gold: Annotated[
        bool,
        typer.Option(
            "--gold",
            "--calibrate",
            help="Calibrate the tasks instead: the reference patch of each must be graded solved, "
            "the empty patch unsolved. Tasks that fail are named, and evaluations in this run "
            "directory leave them out.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a policy: pass@k, report.json, predictions.jsonl.

    Infrastructure failures are never counted as unsolved. The first ctrl-C lets running rollouts
    finish, the second stops at once; both can be resumed. Exit code 1: a task has no valid rollout,
    or is unfit (--gold).

    Several values (seed=0,1,2) are a sweep: the evaluations follow one another, with a comparison
    at the end.
    """
    invocation: Invocation = context.obj
    from runners.campaigns.evaluation.benchmarks import find_benchmark
    from runners.campaigns.execution import check_evaluations
    from runners.campaigns.jobs import new_jobs, resumed_job

    found = find_benchmark(benchmark)
    lines = overrides or []
    if resume is not None:
        jobs = [resumed_job(resume, lines, benchmark=found.name)]
    else:
        jobs = new_jobs(split_command(["eval", benchmark, *lines])[1], kind=f"eval-{found.name}")
    check_evaluations(jobs, found.name, uses_policy=not gold)
    measure = _calibrate if gold else _evaluate
    if len(jobs) == 1:
        raise typer.Exit(_run_single(jobs[0], invocation, found, measure))
    raise typer.Exit(_run_sweep(jobs, invocation, found, measure))


def _run_single(job: Job, invocation: Invocation, benchmark: Benchmark, measure: Measure) -> int:
    document, _ = measure(benchmark, job, invocation)
    if document["message"]:
        report_error(document["message"])
    # every task has been calibrated: being unfit does not change
    settled = measure is _calibrate and document["exit_code"] == 1 and not document["not_graded"]
    if can_resume(document["exit_code"]) and not settled:
        gold = " --gold" if measure is _calibrate else ""
        stderr().print(
            f"continue with: agentrl eval {benchmark.name}{gold} --resume {job.run_dir}",
            soft_wrap=True,
        )
    if invocation.json:
        print_json(document)
    else:
        typer.echo(job.run_dir)
    return int(document["exit_code"])


def _run_sweep(
    jobs: list[Job], invocation: Invocation, benchmark: Benchmark, measure: Measure
) -> int:
    from cli.sweep import run_sweep
    from runners.campaigns.evaluation.report import render_comparison

    def run_one(job: Job) -> tuple[dict[str, Any], bool]:
        return measure(benchmark, job, invocation)

    return run_sweep(jobs, invocation, run_one, render_comparison)


def _evaluate(
    benchmark: Benchmark, job: Job, invocation: Invocation
) -> tuple[dict[str, Any], bool]:
    """Run an evaluation; return its document, and whether the user asked to stop."""
    from runners.campaigns.evaluation.report import render_report
    from runners.campaigns.execution import execute_evaluation

    invocation.run_dir = job.run_dir
    result = execute_evaluation(benchmark, job)
    if result.report is not None:
        stderr().print(render_report(result.report, job.run_dir))
    offer_report(job.run_dir, invocation)
    report = result.report.model_dump(mode="json") if result.report else {}
    document = {"run_dir": str(job.run_dir), **report, **result.end.document()}
    return document, result.end.stop_requested


def _calibrate(
    benchmark: Benchmark, job: Job, invocation: Invocation
) -> tuple[dict[str, Any], bool]:
    """Run a calibration; return its document, and whether the user asked to stop."""
    from runners.campaigns.evaluation.report import render_calibration
    from runners.campaigns.execution import execute_calibration

    invocation.run_dir = job.run_dir
    result = execute_calibration(benchmark, job)
    if result.document:
        stderr().print(render_calibration(result.document))
    document = {"run_dir": str(job.run_dir), **result.document, **result.end.document()}
    return document, result.end.stop_requested

"""``agentrl eval``: measure a policy on a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import Json, Overrides, examples
from cli.invocation import (
    Invocation,
    print_json,
    report_error,
    report_run_dir,
    report_warning,
    stderr,
)

if TYPE_CHECKING:
    from cli.jobs import Job
    from runners.evaluation.benchmarks import Benchmark

EXAMPLES = examples(
    "agentrl eval bugfix",
    "agentrl eval bugfix model.path=runs/20260101-120000-linear/checkpoints/step-000060",
    "agentrl eval bugfix eval.attempts_per_task=4 eval.tasks=125 faults=chaos",
    "agentrl eval bugfix --resume runs/20260101-120000-eval-bugfix eval.attempts_per_task=8",
)

NO_TRAINING = ("run.steps=0", "run.eval_tasks=0")
"""A campaign's share of the configuration, which an evaluation has nothing of."""


def evaluate(
    context: typer.Context,
    benchmark: Annotated[
        str,
        typer.Argument(
            metavar="BENCHMARK", help="What to measure: bugfix, swebench.", show_default=False
        ),
    ],
    overrides: Overrides = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue the evaluation in this directory: what failed, what was not run. "
            "KEY=VALUE may raise eval.tasks and eval.attempts_per_task.",
            show_default=False,
        ),
    ] = None,
    gold: Annotated[
        bool,
        typer.Option(
            "--gold",
            help="Calibrate instead: the reference patch of each task must be graded solved, the "
            "empty one not. Tasks that fail are named, and left out when RUN is evaluated.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a policy: pass@k, report.json, predictions.jsonl.

    Infrastructure failures are never counted as unsolved. The first ctrl-C drains, the second
    leaves; both can be resumed. Exit code 1: some task has no valid rollout, or is unfit (--gold).
    """
    invocation: Invocation = context.obj
    invocation.json = as_json
    from cli.jobs import new_job, resumed_job
    from launch.preflight import preflight, refuse_fatal
    from runners.evaluation.benchmarks import find_benchmark

    found = find_benchmark(benchmark)
    lines = overrides or []
    if resume is not None:
        job = resumed_job(resume, lines, benchmark=found.name)
    else:
        job = new_job([f"task={found.task}", *NO_TRAINING, *lines], kind=f"eval-{found.name}")
    problems = preflight(job.config, job.run_dir, trains=False)
    refuse_fatal(problems)
    for problem in problems:
        report_warning(problem.message)
    invocation.run_dir = job.run_dir
    report_run_dir(job.run_dir)
    job.write_config()
    document = _calibrate(found, job) if gold else _evaluate(found, job)
    if document["exit_code"]:
        stderr().print(
            f"continue with: agentrl eval {found.name}{' --gold' if gold else ''} "
            f"--resume {job.run_dir}",
            soft_wrap=True,
        )
    if as_json:
        print_json(document)
    else:
        typer.echo(job.run_dir)
    raise typer.Exit(document["exit_code"])


def _evaluate(benchmark: Benchmark, job: Job) -> dict[str, Any]:
    from runners.evaluation.run import run_evaluation
    from runners.evaluation.table import report_table

    result = run_evaluation(benchmark, job.config, job.run_dir, resume=job.resume)
    if result.report is not None:
        stderr().print(report_table(result.report, job.run_dir))
    if result.message:
        report_error(result.message)
    report = result.report.model_dump(mode="json") if result.report else {}
    return {
        "run_dir": str(job.run_dir),
        **report,
        "exit_code": int(result.exit_code),
        "message": result.message,
    }


def _calibrate(benchmark: Benchmark, job: Job) -> dict[str, Any]:
    from runners.evaluation.calibration import calibrate
    from runners.evaluation.table import calibration_table

    result = calibrate(benchmark, job.config, job.run_dir, resume=job.resume)
    stderr().print(calibration_table(result.document))
    if result.message:
        report_error(result.message)
    return {**result.document, "exit_code": int(result.exit_code), "message": result.message}

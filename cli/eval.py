"""``agentrl eval``: measure a policy on a benchmark."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import ConfigDir, Json, Overrides, examples, split_command
from cli.invocation import Invocation, stderr
from cli.measurement import run_measurements
from cli.report import offer_report
from cli.task_check import check_tasks, is_task_check

if TYPE_CHECKING:
    from runners.campaigns.evaluation.benchmarks import Benchmark
    from runners.campaigns.jobs import Job

EXAMPLES = examples(
    "agentrl eval bugfix",
    "agentrl eval bugfix model.path=runs/20260101-120000-linear/checkpoints/step-000060",
    "agentrl eval bugfix eval.attempts_per_task=4 eval.tasks=125 faults=chaos",
    "agentrl eval swebench task.path=SWE-bench/SWE-bench_Verified eval.ids='django__*'",
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
            help="Check the tasks instead: `agentrl tasks check task=BENCHMARK` with the same "
            "KEY=VALUE.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a policy: pass@k, report.json, predictions.jsonl.

    Infrastructure failures are never counted as unsolved. The first ctrl-C lets running rollouts
    finish, the second stops at once; both can be resumed. Exit code 1: a task has no valid rollout,
    or is set aside (--gold).

    Several values (seed=0,1,2) are a sweep: the evaluations follow one another, with a comparison
    at the end.
    """
    invocation: Invocation = context.obj
    from runners.campaigns.evaluation.benchmarks import find_benchmark
    from runners.campaigns.execution import check_evaluations
    from runners.campaigns.jobs import new_jobs, resumed_job

    found = find_benchmark(benchmark)
    lines = overrides or []
    if gold or (resume is not None and is_task_check(resume)):
        chosen = [] if resume is not None else [f"task={found.name}"]
        raise typer.Exit(check_tasks([*chosen, *lines], resume, invocation))
    if resume is not None:
        jobs = [resumed_job(resume, lines, benchmark=found.name)]
    else:
        jobs = new_jobs(split_command(["eval", benchmark, *lines])[1], kind=f"eval-{found.name}")
    check_evaluations(jobs, found)
    measure = partial(_evaluate, found)
    raise typer.Exit(run_measurements(jobs, invocation, measure, f"eval {found.name}"))


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

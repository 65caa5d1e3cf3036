"""``agentrl run``: run a campaign, or one for each combination of a sweep."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import ConfigDir, Json, Overrides, examples
from cli.invocation import (
    Invocation,
    can_resume,
    print_json,
    report_error,
    stderr,
    stdout,
)
from cli.report import offer_report
from conf.errors import AgentrlError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from launch.local import LocalPlan
    from runners.campaigns.execution import Reports
    from runners.campaigns.jobs import Job

SEED = re.compile(r"\+*seed=")
"""Begins the part of a label that names the seed."""
EXAMPLES = examples(
    "agentrl run",
    "agentrl run run.steps=20 seed=0,1,2",
    "agentrl run --resume runs/20260101-120000-linear",
    "agentrl run --config runs/20260101-120000-linear/config.json seed=1",
    "agentrl run trainer=slime launch=slurm launch.shared_dir=/shared model=glm4_7_355b_a32b "
    "model.path=/shared/GLM-4.7 task=jsonl task.path=/shared/tasks.jsonl",
)


def run(
    context: typer.Context,
    overrides: Overrides = None,
    _config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the plan and the problems; start nothing. The scripts of a job on a cluster "
            "are written.",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue the run in this directory. KEY=VALUE may raise run.steps and change "
            "keys that do not alter the result.",
            show_default=False,
        ),
    ] = None,
    rewind: Annotated[
        bool,
        typer.Option(
            "--rewind",
            help="With --resume: go on from the newest checkpoint although later ones are lost; "
            "the steps after it are dropped and repeated.",
        ),
    ] = False,
    replay_schedule: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Repeat the asynchronous run in this directory: the same groups are trained "
            "together, and the same weights sample each token.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start from this configuration (a run's config.json) instead of the defaults.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a campaign: roll out, grade, train, evaluate, checkpoint.

    The first ctrl-C lets running rollouts finish, the second stops at once; both can be resumed.

    With launch=ssh, slurm, ray or kubernetes the campaign is a job on a cluster: agentrl writes its
    scripts, checks them, starts the job and follows it. The job survives the terminal; --resume
    follows it again, or continues it.

    Several values (seed=0,1,2) are a sweep: the runs follow one another, with a comparison at the
    end.
    """
    invocation: Invocation = context.obj
    if resume is not None and config is not None:
        raise typer.BadParameter("--resume takes its configuration from the run; drop --config")
    if rewind and resume is None:
        raise typer.BadParameter("--rewind continues a run: name it with --resume RUN")
    if replay_schedule is not None and (resume is not None or config is not None):
        raise typer.BadParameter(
            "--replay-schedule takes its configuration from the run: drop --resume and --config"
        )
    from runners.campaigns.jobs import new_jobs, replaying_job, resumed_job

    lines = overrides or []
    if resume is not None:
        jobs = [resumed_job(resume, lines, rewind=rewind)]
    elif replay_schedule is not None:
        jobs = [replaying_job(replay_schedule, lines)]
    else:
        jobs = new_jobs(lines, config)
    if jobs[0].config.launch.kind == "local":
        raise typer.Exit(_run_here(jobs, invocation, dry_run=dry_run, as_json=as_json))
    from cli.cluster_run import ClusterRun

    given = {"--resume": resume, "--config": config}
    options = [word for name, path in given.items() if path for word in (name, str(path))]
    cluster_run = ClusterRun(jobs[0], invocation, ["agentrl", "run", *options, *lines])
    raise typer.Exit(cluster_run.dry_run() if dry_run else cluster_run.run())


def _run_here(jobs: list[Job], invocation: Invocation, *, dry_run: bool, as_json: bool) -> int:
    """Run jobs on this machine, or show their plans; return the exit code."""
    from runners.campaigns.execution import check_campaigns

    if dry_run:
        return _dry_run(jobs, as_json=as_json)
    check_campaigns(jobs)
    return _run_single(jobs[0], invocation) if len(jobs) == 1 else _run_sweep(jobs, invocation)


def _dry_run(jobs: list[Job], *, as_json: bool) -> int:
    """Show the plans of jobs with all problems; return the exit code that the run would have."""
    from launch.local import plan_local_run
    from launch.preflight import Problem
    from runners.campaigns.execution import find_start_errors, report_examples, report_sets

    sets: list[Reports] = []
    errors = find_start_errors(jobs, note_sets=sets.append)
    report_sets(sets)
    if not errors:
        report_examples(jobs)
    found = tuple(Problem(True, str(error)) for error in errors)
    plans = [plan_local_run(job.config, job.run_dir) for job in jobs]
    plans = [replace(plan, problems=(*plan.problems, *found)) for plan in plans]
    code = _dry_run_code(plans, errors)
    _show_plans(jobs, plans, sets if len(sets) == len(jobs) else None, code, as_json=as_json)
    return code


def _run_sweep(jobs: list[Job], invocation: Invocation) -> int:
    from cli.sweep import run_sweep
    from cli.tables import render_comparison
    from runners.observe.report import pool_seeds

    def run_one(job: Job) -> tuple[dict[str, Any], bool]:
        document, stop = _run_campaign_job(job, invocation)
        offer_report(job.run_dir, invocation)
        return document, stop

    def compare(documents: list[dict[str, Any]]) -> RenderableType:
        labels = [document["label"].split() for document in documents]
        settings = [" ".join(each for each in words if not SEED.match(each)) for words in labels]
        return render_comparison(documents, pool_seeds(documents, settings))

    return run_sweep(jobs, invocation, run_one, compare)


def _run_campaign_job(job: Job, invocation: Invocation) -> tuple[dict[str, Any], bool]:
    """Run one job to its end; return its document, and whether the user asked to stop.

    Raises AgentrlError if the job could not start.
    """
    from runners.campaigns.execution import execute_campaign

    invocation.run_dir = job.run_dir
    result = execute_campaign(job)
    document = {**result.summary, "exit_code": int(result.exit_code), "message": result.message}
    return document, result.stop_requested


def _run_single(job: Job, invocation: Invocation) -> int:
    from runners.observe.live import summary_table

    document, _ = _run_campaign_job(job, invocation)
    if document["exit_code"] and document["message"]:
        report_error(document["message"])
    stderr().print(summary_table(document))
    if can_resume(document["exit_code"]):
        stderr().print(f"continue with: agentrl run --resume {job.run_dir}", soft_wrap=True)
    offer_report(job.run_dir, invocation)
    if invocation.json:
        print_json(document)
    else:
        typer.echo(document["run_dir"])
    return int(document["exit_code"])


def _show_plans(
    jobs: list[Job],
    plans: list[LocalPlan],
    sets: Sequence[Reports] | None,
    code: ExitCode,
    *,
    as_json: bool,
) -> None:
    """Show the plans and, behind the last one, all problems. ``sets``: those of each job, None if
    some could not be read; ``code``: the exit code that the run would have.
    """
    from cli.tables import render_plan, render_problems
    from cli.task_counts import describe_sets
    from conf.plan_numbers import find_key_numbers

    policies = [_describe_policy(job) for job in jobs]
    if as_json:
        documents = [
            {
                "label": job.label,
                "run_dir": str(job.run_dir),
                "policy": policy,
                "changes": job.changes(),
                "config": job.config.model_dump(mode="json"),
                "numbers": asdict(find_key_numbers(job.config)),
                "plan": asdict(plan),
                **describe_sets(read),
            }
            for job, plan, policy, read in zip(
                jobs, plans, policies, sets or [{}] * len(jobs), strict=True
            )
        ]
        print_json(documents[0] if len(documents) == 1 else {"runs": documents})
        return
    for job, plan, policy in zip(jobs, plans, policies, strict=True):
        stdout().print(render_plan(job, plan, policy=policy))
    stdout().print(render_problems(jobs, plans, code))


def _describe_policy(job: Job) -> str:
    """Describe the origin of the starting weights."""
    model = job.config.model
    origin = f" from {model.path}" if model.path is not None else ", which comes with agentrl"
    return f"model={model.kind}{origin}"


def _dry_run_code(plans: list[LocalPlan], errors: list[AgentrlError]) -> ExitCode:
    """Return the exit code that the run would have at its start."""
    number = sum(problem.fatal for plan in plans for problem in plan.problems)
    codes = {error.exit_code for error in errors}
    if number == len(plans) * len(errors) and len(codes) == 1:
        return codes.pop()
    return ExitCode.PREFLIGHT if number else ExitCode.DONE

"""``agentrl run``: a campaign, or one per combination of a sweep."""

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
    stdout,
)
from conf.errors import ExitCode

if TYPE_CHECKING:
    from cli.jobs import Job
    from launch.local import LocalPlan

EXAMPLES = examples(
    "agentrl run",
    "agentrl run run.steps=20 seed=0,1,2",
    "agentrl run --resume runs/20260101-120000-linear",
    "agentrl run --config runs/20260101-120000-linear/config.json seed=1",
)


def run(
    context: typer.Context,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan and what stands in its way; start nothing."),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue the run in this directory. KEY=VALUE may raise run.steps and change "
            "what does not alter the result.",
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

    The first ctrl-C drains, the second leaves; both can be resumed.

    Several values, seed=0,1,2, are a sweep: its runs follow one another and end in one comparison.
    """
    invocation: Invocation = context.obj
    invocation.json = as_json
    if resume is not None and config is not None:
        raise typer.BadParameter("--resume takes its configuration from the run; drop --config")
    from cli.jobs import new_jobs, resumed_job
    from launch.local import plan
    from launch.preflight import refuse_fatal

    lines = overrides or []
    jobs = [resumed_job(resume, lines)] if resume is not None else new_jobs(lines, config)
    if any(job.config.launch.kind != "local" for job in jobs):
        _write_jobs(jobs, dry_run=dry_run, as_json=as_json)
        return
    plans = [plan(job.config, job.run_dir) for job in jobs]
    if dry_run:
        _show_plans(jobs, plans, as_json=as_json)
        raise typer.Exit(_dry_run_code(plans))
    problems = dict.fromkeys(problem for plan in plans for problem in plan.problems)
    refuse_fatal(problems)
    for problem in problems:
        report_warning(problem.message)
    if len(jobs) == 1:
        raise typer.Exit(_single(jobs[0], invocation))
    raise typer.Exit(_sweep(jobs, invocation))


def _write_jobs(jobs: list[Job], *, dry_run: bool, as_json: bool) -> None:
    """Write the scripts of jobs on a cluster, all of them checked before."""
    from cli.launch import show_job
    from conf.errors import ConfigError
    from launch.plan import plan_job
    from launch.write import write_job

    plans = [plan_job(job.config) for job in jobs]
    if not dry_run:
        raise ConfigError(
            [
                f"launch={jobs[0].config.launch.kind} is started by its script: add --dry-run to "
                "write it, and start what it names"
            ]
        )
    for job, found in zip(jobs, plans, strict=True):
        words = [f"{key}={value}" for key, value in job.changes().items()]
        command = ["agentrl", "run", *words, "--dry-run"]
        start = write_job(found, job.run_dir / "launch", command=command)
        show_job(found, start, as_json=as_json)


def _campaign(job: Job, invocation: Invocation) -> tuple[dict[str, Any], bool]:
    """Run one job to its end; return its document, and whether the user asked to stop.

    Raises AgentrlError if it could not start.
    """
    from runners.campaign.run import run_campaign

    invocation.run_dir = job.run_dir
    report_run_dir(job.run_dir)
    job.write_config()
    result = run_campaign(job.config, job.run_dir, resume=job.resume)
    document = {**result.summary, "exit_code": int(result.exit_code), "message": result.message}
    return document, result.asked_to_stop


def _single(job: Job, invocation: Invocation) -> int:
    from runners.observe.summary import summary_table

    document, _ = _campaign(job, invocation)
    if document["exit_code"] and document["message"]:
        report_error(document["message"])
    stderr().print(summary_table(document))
    if document["exit_code"]:
        stderr().print(f"continue with: agentrl run --resume {job.run_dir}", soft_wrap=True)
    if invocation.json:
        print_json(document)
    else:
        typer.echo(document["run_dir"])
    return int(document["exit_code"])


def _sweep(jobs: list[Job], invocation: Invocation) -> int:
    """Run the jobs one after the other: a failure is a row of the comparison, a signal the end."""
    from rich.text import Text

    from cli.tables import render_comparison

    documents: list[dict[str, Any]] = []
    for number, job in enumerate(jobs, 1):
        stderr().rule(Text(f"{number} of {len(jobs)}: {job.label}"), align="left")
        stop = False
        try:
            document, stop = _campaign(job, invocation)
        except Exception as error:  # the top of one run: the sweep goes on
            code, message = invocation.judge(error)
            document = {"run_dir": str(job.run_dir), "exit_code": int(code), "message": message}
        documents.append({"label": job.label, **document})
        if document["exit_code"]:
            report_error(document["message"])
        if stop:
            break
    stderr().print(render_comparison(documents))
    codes = [int(document["exit_code"]) for document in documents]
    if len(documents) < len(jobs):
        codes.append(int(ExitCode.INTERRUPTED))
        stderr().print(f"{len(jobs) - len(documents)} of {len(jobs)} runs were not started")
    if invocation.json:
        print_json({"runs": documents})
    else:
        for document in documents:
            typer.echo(document["run_dir"])
    return max(codes)


def _show_plans(jobs: list[Job], plans: list[LocalPlan], *, as_json: bool) -> None:
    from cli.tables import render_plan

    policies = [_policy(job) for job in jobs]
    if as_json:
        documents = [
            {
                "label": job.label,
                "run_dir": str(job.run_dir),
                "policy": policy,
                "changes": job.changes(),
                "config": job.config.model_dump(mode="json"),
                "plan": plan.to_dict(),
            }
            for job, plan, policy in zip(jobs, plans, policies, strict=True)
        ]
        print_json(documents[0] if len(documents) == 1 else {"runs": documents})
        return
    for job, plan, policy in zip(jobs, plans, policies, strict=True):
        stdout().print(render_plan(job, plan, policy=policy))


def _policy(job: Job) -> str:
    """Say where the starting weights come from."""
    from conf.schema import TinyModel
    from runners.training.bootstrap import tiny_directory

    model = job.config.model
    if model.path is not None:
        return f"model={model.kind} from {model.path}"
    if (
        isinstance(model, TinyModel)
        and (kept := tiny_directory(model, job.config.scenario.kind)).exists()
    ):
        return f"model={model.kind}, cached in {kept}"
    return f"model={model.kind}, made on first use (about 3 minutes), then cached"


def _dry_run_code(plans: list[LocalPlan]) -> ExitCode:
    fatal = any(problem.fatal for plan in plans for problem in plan.problems)
    return ExitCode.PREFLIGHT if fatal else ExitCode.DONE

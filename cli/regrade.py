"""``agentrl regrade``: grade the stored patches of a run again."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import Json, Overrides, RunDir, examples

EXAMPLES = examples(
    "agentrl regrade runs/20260101-120000-linear",
    "agentrl regrade runs/20260101-120000-linear --only grader.timeout "
    "rollout.deadlines.grade_s=90",
    "agentrl regrade runs/20260101-120000-eval-bugfix --all",
)


def regrade(
    context: typer.Context,
    run: RunDir,
    overrides: Overrides = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also rollouts that have a verdict; the old one is kept in an event."
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="CODE", help="Only rollouts with this outcome code.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Grade stored patches whose grading failed or was interrupted.

    Neither the policy nor the gateway is needed.
    KEY=VALUE may change sandbox, rollout.deadlines and rollout.concurrency. Exit code 1: a patch
    still has no verdict.
    """
    from cli.invocation import print_json, stderr
    from runners.campaigns.evaluation.regrade import regrade as grade_again
    from runners.campaigns.evaluation.report import render_regrading

    context.obj.run_dir = run
    result = grade_again(run, overrides or [], only=only, everything=everything)
    stderr().print(render_regrading(result.to_dict()))
    if as_json:
        print_json(result.to_dict())
    else:
        typer.echo(run)
    raise typer.Exit(int(result.exit_code))

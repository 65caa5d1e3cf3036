"""``agentrl compare``: show the results of several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import Json, examples

EXAMPLES = examples(
    "agentrl compare runs/20260101-120000-linear runs/20260101-130000-linear",
    "agentrl compare runs/20260101-120000-linear runs/20260101-130000-linear --html runs.html",
)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run directories, two or more.",
            show_default=False,
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write them to a page, with their curves over each other and all flips.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: solve rates, reward, tokens, time, different keys; task by task with the first.

    The paired test flips the signs of the tasks' differences; a task is gained or lost if most of
    its rollouts solve it in one of the two runs.
    """
    if len(runs) < 2:
        raise typer.BadParameter("name two runs or more")
    if len({run.resolve() for run in runs}) < len(runs):
        raise typer.BadParameter("name each run once")
    from cli.comparison_view import RateCurves, render_costs
    from cli.invocation import print_json, stdout
    from cli.tables import render_comparison, render_differences, render_pairs
    from runners.observe.report import compare_runs

    found = compare_runs(runs)
    if html is not None:
        from runners.observe.report import write_comparison

        write_comparison(found, runs, html)
    if as_json:
        print_json(found if html is None else found | {"html": str(html)})
        return
    if html is not None:
        typer.echo(html)
        return
    stdout().print(render_comparison(found["runs"], found["seeds"], title="runs"))
    stdout().print(RateCurves(found["runs"]))
    if found["pairs"]:
        stdout().print(render_pairs(found["pairs"]))
    stdout().print(render_costs(found["runs"]))
    stdout().print(
        render_differences(found["differences"], [run["label"] for run in found["runs"]])
    )

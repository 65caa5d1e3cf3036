"""``agentrl report``: a run as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import Json, RunDir, examples
from cli.invocation import Invocation, print_json, report_warning, stderr

EXAMPLES = examples(
    "agentrl report runs/20260101-120000-linear",
    "agentrl report runs/20260101-120000-eval-bugfix --out bugfix.html",
)


def report(
    context: typer.Context,
    run: RunDir,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to; RUN/report.html if not given.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a page that shows a run, running or ended: one HTML file that loads nothing."""
    context.obj.json = as_json
    from runners.report.page import write_report

    path = write_report(run, out)
    if as_json:
        print_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        typer.echo(path)


def offer_report(run_dir: Path, invocation: Invocation) -> None:
    """Write the report of a run that has ended, if that is quick, and say where it is; else say how
    it is made.
    """
    from runners.report.page import is_quick, write_report

    try:
        if is_quick(run_dir):
            stderr().print(f"report: {write_report(run_dir)}", soft_wrap=True)
        else:
            stderr().print(f"for a report: agentrl report {run_dir}", soft_wrap=True)
    except Exception as error:  # its top: how the run ended is said, and stays so
        report_warning(f"no report: {invocation.judge(error)[1]}")

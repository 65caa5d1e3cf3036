"""``agentrl report``: write a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import Json, RunDir, examples
from cli.invocation import Invocation, print_json, stderr

EXAMPLES = examples(
    "agentrl report runs/20260101-120000-linear",
    "agentrl report runs/20260101-120000-eval-bugfix --out bugfix.html",
    "agentrl report runs/20260102-120000-linear --against runs/20260101-120000-linear",
)


def report(
    run: RunDir,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File to write; default: RUN/report.html.", show_default=False
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Name the tasks that this earlier run solved and RUN does not, and the reverse.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run, running or ended, as one HTML page.

    The file is complete: it loads nothing from elsewhere.
    """
    from runners.observe.report import read_against, write_report

    compared = None if against is None else read_against(run, against)
    path = write_report(run, out, compared)
    if as_json:
        document: dict[str, Any] = {"report": str(path), "bytes": path.stat().st_size}
        if compared is not None:
            document["against"] = compared.pair and compared.pair.to_dict()
        print_json(document)
    else:
        typer.echo(path)


def offer_report(run_dir: Path, invocation: Invocation) -> None:
    """Write the report of a run that has ended if that is quick, else print the command for it.

    The run has ended and is reported already, so that an error here is only a warning.
    """
    from runners.observe.report import is_quick, write_report

    try:
        if is_quick(run_dir):
            stderr().print(f"report: {write_report(run_dir)}", soft_wrap=True)
        else:
            stderr().print(f"for a report: agentrl report {run_dir}", soft_wrap=True)
    except Exception as error:  # the top of the report
        from runners.observe.console import report_warning

        report_warning(f"no report: {invocation.classify(error)[1]}")

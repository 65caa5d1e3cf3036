"""Run the jobs of a sweep one after the other, and compare them at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from cli.invocation import Invocation, print_json, report_error, stderr
from conf.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runners.campaigns.jobs import Job

Document = dict[str, Any]


def run_sweep(
    jobs: list[Job],
    invocation: Invocation,
    run_one: Callable[[Job], tuple[Document, bool]],
    compare: Callable[[list[Document]], RenderableType],
) -> int:
    """Run the jobs and print their comparison; return the highest exit code.

    A job that fails becomes a row of the comparison; a signal ends the sweep. ``run_one`` returns a
    job's document and whether the user asked to stop, and raises if the job could not start;
    ``compare`` renders the documents.
    """
    from rich.text import Text

    documents: list[Document] = []
    for number, job in enumerate(jobs, 1):
        stderr().rule(Text(f"{number} of {len(jobs)}: {job.label}"), align="left")
        stop = False
        try:
            document, stop = run_one(job)
        except Exception as error:  # the top of one run: the sweep goes on
            code, message = invocation.classify(error)
            document = {"run_dir": str(job.run_dir), "exit_code": int(code), "message": message}
        documents.append({"label": job.label, **document})
        if document["exit_code"]:
            report_error(document["message"])
        if stop:
            break
    stderr().print(compare(documents))
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

"""``agentrl watch``: follow a run from another terminal."""

from __future__ import annotations

import typer

from cli.arguments import RunDir, examples

EXAMPLES = examples("agentrl watch runs/20260101-120000-linear")


def watch(run: RunDir) -> None:
    """Watch a run until it ends; the run is only read.

    Exit code: the run's own; 4 if its driver is gone. ctrl-C stops watching, not the run.
    """
    from cli.invocation import stderr, stdout
    from conf.errors import ExitCode
    from runners.observe.live import follow_run, render

    try:
        status = follow_run(run, stderr())
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    stdout().print(render(status))
    raise typer.Exit(ExitCode.SERVICE_GONE if status.exit_code is None else status.exit_code)

"""``agentrl status``: how a run stands."""

from __future__ import annotations

import typer

from cli.arguments import Json, RunDir, examples

EXAMPLES = examples("agentrl status runs/20260101-120000-linear")


def status(context: typer.Context, run: RunDir, as_json: Json = False) -> None:
    """Show how a run stands, whether it runs now or not, here or on a cluster."""
    context.obj.json = as_json
    from cli.invocation import print_json, stdout
    from runners.backends.published import read_published
    from runners.observe.status import read_status, render

    found = read_published(run) or read_status(run)
    if as_json:
        print_json(found.to_dict())
    else:
        stdout().print(render(found))

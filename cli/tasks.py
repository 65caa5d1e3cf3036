"""``agentrl tasks``: list the tasks of a dataset, and write tasks as Harbor directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.arguments import NO_TRAINING, Json, Overrides, examples

app = typer.Typer(no_args_is_help=True, help="List tasks, and write them as Harbor directories.")
LIST_EXAMPLES = examples(
    "agentrl tasks list suite",
    "agentrl tasks list tasks.jsonl --match 'django__*' sandbox=docker",
)
EXPORT_EXAMPLES = examples(
    "agentrl tasks export-harbor suite task=bugfix --match 'train-00*'",
    "agentrl tasks export-harbor suite task=swebench",
    "agentrl tasks export-harbor suite task=jsonl task.path=tasks.jsonl --match 'acme__*'",
)
NO_GATEWAY = ("gateway.host=0.0.0.0", "gateway.port=1", "gateway.public_url=http://gateway:1")
"""An address that remote sandboxes could reach: nothing is started, so none is needed."""
Match = Annotated[str, typer.Option("--match", metavar="GLOB", help="Only tasks of such ids.")]


@app.command("list", epilog=LIST_EXAMPLES)
def list_tasks(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="As in task.path.", show_default=False)
    ],
    overrides: Overrides = None,
    match: Match = "*",
    as_json: Json = False,
) -> None:
    """List tasks: split, grading, image, and whether these sandboxes can run each.

    Exit code 5: an entry is malformed.
    """
    from cli.invocation import print_json, report_error, stderr, stdout
    from cli.tables import render_tasks
    from conf.compose import compose
    from conf.errors import ExitCode
    from conf.sections.task import JsonlTaskConfig
    from runners.tasks.listing import list_dataset

    lines = ["task=jsonl", "task.path=PATH", *NO_TRAINING, *NO_GATEWAY, *(overrides or [])]
    config = compose(lines)
    assert isinstance(config.task, JsonlTaskConfig)
    family = config.task.model_copy(update={"path": path})
    with stderr().status("reading the tasks…") as status:
        listing = list_dataset(family, config.sandbox, match, seed=config.seed, show=status.update)
    if as_json:
        print_json(listing.to_dict())
    else:
        stdout().print(render_tasks(listing))
    for fault in listing.faults:
        report_error(fault)
    raise typer.Exit(int(ExitCode.DATA_REFUSED if listing.faults else ExitCode.DONE))


@app.command("export-harbor", epilog=EXPORT_EXAMPLES)
def export_harbor(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A directory to be made.", show_default=False)
    ],
    overrides: Overrides = None,
    match: Match = "*",
    split: Annotated[
        Literal["train", "held_out"] | None,
        typer.Option(help="Only tasks of this split.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write tasks as Harbor directories that need nothing of agentrl.

    Exit code 5: some tasks have no such form; each is named.
    """
    from cli.invocation import print_json, report_warning
    from conf.compose import compose
    from conf.errors import ExitCode
    from runners.tasks.suite_export import export_suite

    config = compose([*NO_TRAINING, *(overrides or [])])
    suite = export_suite(config, out, match, split)
    for name, reason in suite.refused.items():
        report_warning(f"{name}: {reason}")
    if as_json:
        print_json({"path": str(out), "written": list(suite.written), "refused": suite.refused})
    else:
        typer.echo(out)
    raise typer.Exit(int(ExitCode.DATA_REFUSED if suite.refused else ExitCode.DONE))

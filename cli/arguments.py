"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: a list of example command lines."""
    return "\n\n".join(["[bold]Examples[/]", *(f"  {line}" for line in lines)])


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Choose from a group (engine=sglang) or set a key (run.steps=10).",
        show_default=False,
    ),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]

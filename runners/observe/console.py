"""Consoles of rich: for terminals, files and notebooks."""

from __future__ import annotations

import sys

from rich.console import Console

from runners.records.text import make_printable


def make_console(*, stderr: bool = True) -> Console:
    """Return a console that prints strings as they are; only ``Text`` has styles.

    In a notebook it prints lines, as into a file: the stream there says that it is a terminal, but
    moves no cursor, and rich's own output for notebooks shows each part of a line as a line.
    """
    in_notebook = "ipykernel" in sys.modules
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        force_jupyter=False,
        force_terminal=False if in_notebook else None,
    )


def report_warning(message: str) -> None:
    """Print a warning of one line to stderr, in yellow."""
    console = make_console()
    console.print("warning:", style="bold yellow", end=" ")
    console.print(make_printable(message), style="yellow", soft_wrap=True)

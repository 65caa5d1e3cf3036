"""What all commands share: where output goes, and how an error leaves the process.

Results go to stdout, everything for humans to stderr; with ``--json`` stdout holds one JSON
document.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from conf.errors import AgentrlError, ExitCode

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(slots=True)
class Invocation:
    """One call of ``agentrl``; filled in by the options, read where an error ends it."""

    debug: bool = False
    json: bool = False
    run_dir: Path | None = None
    """Where the traceback of an unexpected error is kept, once a run directory is known."""

    def fail(self, error: Exception) -> NoReturn:
        """Say what went wrong and exit: where an error becomes a message and an exit code."""
        code, message = self.judge(error)
        if self.json:
            print_json({"error": message, "exit_code": int(code)})
        report_error(message)
        sys.exit(int(code))

    def judge(self, error: Exception) -> tuple[ExitCode, str]:
        """Return an error's exit code and message; keep the traceback of one that is a defect."""
        import traceback

        if self.debug:
            traceback.print_exception(error)
        if isinstance(error, AgentrlError):
            return error.exit_code, str(error)
        try:
            log = self._keep("".join(traceback.format_exception(error)))
        except OSError:
            log = "no file: no directory could be written"
        reason = " ".join(str(error).split())
        return (
            ExitCode.FAILURE_BUDGET,
            f"unexpected {type(error).__name__}: {reason} (a defect of agentrl: run again with "
            f"`agentrl --debug …`; the traceback is in {log})",
        )

    def _keep(self, text: str) -> str:
        import tempfile

        folder = self.run_dir if self.run_dir is not None and self.run_dir.is_dir() else None
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, prefix="agentrl-error-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        return file.name


def stderr() -> Console:
    """Return a console for humans."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def stdout() -> Console:
    """Return a console for results that humans read."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(document: dict[str, Any]) -> None:
    """Print the one JSON document of ``--json``, on one line: the last one of stdout."""
    sys.stdout.write(json.dumps(document, default=str, allow_nan=False) + "\n")
    sys.stdout.flush()


def report_error(message: str) -> None:
    """Print an error of one or more lines in red to stderr."""
    lines = message.splitlines() or ["(no message)"]
    console = stderr()
    if len(lines) == 1:
        console.print("[bold red]error:[/]", end=" ")
        console.print(lines[0], style="red", markup=False, soft_wrap=True)
        return
    console.print(f"[bold red]{len(lines)} errors:[/]")
    for line in lines:
        console.print(f"  {line}", style="red", markup=False, soft_wrap=True)


def report_warning(message: str) -> None:
    """Print a warning of one line in yellow to stderr."""
    console = stderr()
    console.print("[bold yellow]warning:[/]", end=" ")
    console.print(message, style="yellow", markup=False, soft_wrap=True)

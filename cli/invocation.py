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

from conf.errors import AgentrlError, ExitCode, error_text

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
            return error.exit_code, error_text(error)
        try:
            log = self._keep("".join(traceback.format_exception(error)))
        except OSError:
            log = "no file: no directory could be written"
        reason = " ".join(error_text(error).split())
        return (
            ExitCode.FAILURE_BUDGET,
            f"unexpected {type(error).__name__}: {reason} (a defect of agentrl: run again with "
            f"`agentrl --debug …`; the traceback is in {log})",
        )

    def _keep(self, text: str) -> str:
        import tempfile

        folder = self.run_dir if self.run_dir is not None and self.run_dir.is_dir() else None
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, prefix="agentrl-error-", suffix=".log", delete=False,
            encoding="utf-8", errors="backslashreplace",
        ) as file:  # fmt: skip
            file.write(text)
        return file.name


def stderr() -> Console:
    """Return a console for humans; strings are shown as they are, style is for ``Text``."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def stdout() -> Console:
    """Return a console for results that humans read; strings are shown as they are."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_json(document: dict[str, Any]) -> None:
    """Print the one JSON document of ``--json``, on one line: the last one of stdout.

    Strict JSON in ASCII, whatever is in it: any reader and any locale take it.
    """
    from runners.store.json_text import dumps, loads

    sys.stdout.write(json.dumps(loads(dumps(document)), allow_nan=False) + "\n")
    sys.stdout.flush()


def report_error(message: str) -> None:
    """Print an error of one or more lines in red to stderr."""
    from runners.observe.terminal import make_printable

    lines = make_printable(message).splitlines() or ["(no message)"]
    console = stderr()
    if len(lines) == 1:
        console.print("error:", style="bold red", end=" ")
        console.print(lines[0], style="red", soft_wrap=True)
        return
    console.print(f"{len(lines)} errors:", style="bold red")
    for line in lines:
        console.print(f"  {line}", style="red", soft_wrap=True)


def report_warning(message: str) -> None:
    """Print a warning of one line in yellow to stderr."""
    from runners.observe.terminal import make_printable

    console = stderr()
    console.print("warning:", style="bold yellow", end=" ")
    console.print(make_printable(message), style="yellow", soft_wrap=True)


def report_run_dir(path: Path) -> None:
    """Say on stderr which run directory it is."""
    from runners.observe.terminal import make_printable

    console = stderr()
    console.print("run directory", style="bright_black", end=" ")
    console.print(make_printable(str(path)), soft_wrap=True)

"""Print output and turn errors into exit codes, for all commands.

Results go to stdout, everything else to stderr. With ``--json`` stdout contains one JSON document.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from conf.errors import AgentrlError, ExitCode, error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console


SHOWN = 18
"""Most of a list of errors, or warnings of one kind, that a person is shown: twenty lines with the
heading and the number of the others."""
_LINE_LENGTH = 2_000
"""Characters of a line: the longest list of choices fits, a pasted file does not."""
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
"""Python's number of an error of the system, before its words."""


@dataclass(slots=True)
class Invocation:
    """State of one call of ``agentrl``: its common options, which decide how an error ends it."""

    debug: bool = False
    json: bool = False
    run_dir: Path | None = None
    """Run directory, once it is known; the traceback of an unexpected error is written to it."""

    def fail(self, error: Exception) -> NoReturn:
        """Print the error's message and exit with its exit code."""
        code, message = self.classify(error)
        if self.json:
            print_json({"error": message, "exit_code": int(code)})
        report_error(message)
        sys.exit(int(code))

    def classify(self, error: Exception) -> tuple[ExitCode, str]:
        """Return an error's exit code and message.

        An error that is not an ``AgentrlError`` is a defect: its traceback is written to a file,
        which the message names.
        """
        import traceback

        if (message := _describe_usage(error)) is not None:
            return ExitCode.USAGE, message
        if self.debug:
            traceback.print_exception(error)
        if isinstance(error, MemoryError):
            return ExitCode.FAILURE_BUDGET, "out of memory: lower rollout.concurrency, or free some"
        if isinstance(error, AgentrlError):
            return error.exit_code, _ERRNO.sub("", error_text(error))
        try:
            log = self._write_log("".join(traceback.format_exception(error)))
        except OSError:
            log = "no file: no directory is writable"
        reason = " ".join(error_text(error).split())
        return (
            ExitCode.FAILURE_BUDGET,
            f"unexpected {type(error).__name__}: {reason} (a defect of agentrl: run again with "
            f"`agentrl --debug …`; the traceback is in {log})",
        )

    def _write_log(self, text: str) -> str:
        import tempfile

        folder = self.run_dir if self.run_dir is not None and self.run_dir.is_dir() else None
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, prefix="agentrl-error-", suffix=".log", delete=False,
            encoding="utf-8", errors="backslashreplace",
        ) as file:  # fmt: skip
            file.write(text)
        return file.name


def _describe_usage(error: Exception) -> str | None:
    """Return the message of typer's error about options and arguments; None for another error."""
    from typer import BadParameter

    usage_error = BadParameter.__base__  # typer has no public name for it
    if usage_error is None or not isinstance(error, usage_error):
        return None
    context = getattr(error, "ctx", None)
    command = "agentrl" if context is None else context.command_path
    message: str = error.format_message()  # type: ignore[attr-defined]
    return f"{message.rstrip('.')} (see {command} --help)"


def can_resume(exit_code: int) -> bool:
    """Return whether ``--resume`` can help a run that ended so.

    It was interrupted, too much failed, or a service was gone; what was refused would be refused
    again.
    """
    return exit_code in (
        ExitCode.FAILURE_BUDGET,
        ExitCode.SERVICE_GONE,
        ExitCode.INTERRUPTED,
        ExitCode.TERMINATED,
    )


def stderr() -> Console:
    """Return a console on stderr. It prints strings as they are; only ``Text`` has styles."""
    from runners.observe.console import make_console

    return make_console()


def stdout() -> Console:
    """Return a console on stdout, for results; it prints strings as they are."""
    from runners.observe.console import make_console

    return make_console(stderr=False)


@contextmanager
def keep_stdout_for_json() -> Iterator[None]:
    """Send to stderr what libraries and plug-ins print, so that stdout has the document alone.

    Ray's driver, for one, prints there that a node has died.
    """
    _documents.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _documents.pop()


_documents: list[TextIO] = []
"""The stream of documents, within ``keep_stdout_for_json``."""


def json_stream() -> TextIO:
    """Return the stream of a command's JSON."""
    return _documents[-1] if _documents else sys.stdout


def print_json(document: dict[str, Any]) -> None:
    """Print the document of ``--json`` on one line.

    It is strict JSON in ASCII, so that every reader and every locale can read it: NaN and infinity
    become null.
    """
    from runners.records.text import dumps, loads

    stream = json_stream()
    stream.write(json.dumps(loads(dumps(document)), allow_nan=False) + "\n")
    stream.flush()


def report_error(message: str) -> None:
    """Print an error to stderr, in red: a line, a heading with its list, or several errors.

    Of a list the first ``SHOWN`` are printed, with the number of the others; ``--json`` has all.
    """
    from runners.records.text import make_printable

    lines = [_cut(line) for line in make_printable(message).splitlines()] or ["(no message)"]
    console = stderr()
    if len(lines) == 1 or lines[0].endswith(":"):
        console.print("error:", style="bold red", end=" ")
        console.print(lines.pop(0), style="red", soft_wrap=True)
    else:
        console.print(f"{len(lines)} errors:", style="bold red")
    for line in lines[:SHOWN]:
        console.print(f"  {line}", style="red", soft_wrap=True)
    if (more := len(lines) - SHOWN) > 0:
        console.print(f"  and {more:,} more", style="red")


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]}…"


def report_each(report: Callable[[str], None], messages: Sequence[str]) -> None:
    """Report the first ``SHOWN`` of several messages of one kind, then the number of the others."""
    for message in messages[:SHOWN]:
        report(message)
    if (more := len(messages) - SHOWN) > 0:
        report(f"and {more:,} more")

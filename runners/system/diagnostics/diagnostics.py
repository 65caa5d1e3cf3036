"""Writes diagnoses of a hanging process below ``<run_dir>/diagnostics``, for a person to read.

On request: SIGUSR1 writes all asyncio tasks and what they wait for, SIGUSR2 all threads. SIGUSR1 is
answered by Python code, so not while C code holds the main thread; SIGUSR2 by C code, at any time.
Unrequested: a watchdog writes both when the event loop is blocked, and errors that nobody awaited
are kept. None of it disturbs the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from conf.errors import error_text
from runners.records.store import raise_store_errors
from runners.system.diagnostics.call_graph import safe_repr
from runners.system.diagnostics.sections import (
    describe_process,
    describe_tasks,
    format_section,
    format_time,
    write_diagnosis,
)
from runners.system.diagnostics.watchdog import Watchdog

FOLDER = "diagnostics"


@contextmanager
def install_diagnostics(
    run_dir: Path,
    name: str = "driver",
    *,
    watchdog_s: float = 0.0,
    report: Callable[[str], None] = lambda line: None,
    more: Callable[[], str] = str,
) -> Iterator[None]:
    """Diagnose the running loop while the block runs; on SIGUSR1 only if it is the main thread's,
    since Python has no signal handlers in others.

    ``watchdog_s`` 0 starts no watchdog. ``report`` takes a line per finding, ``more`` returns
    further text for a stall's file; the watchdog calls both from its own thread. Raises StoreError
    if the folder cannot be made.
    """
    loop = asyncio.get_running_loop()
    folder = run_dir / FOLDER
    with raise_store_errors(folder):
        folder.mkdir(exist_ok=True)
        stacks = (folder / f"{name}-threads.txt").open("a")

    def write_tasks(*_: object) -> None:
        parts = [
            f"The tasks of {name} (process {os.getpid()}) at {format_time()}.\n",
            format_section("process", lambda: describe_process(folder)),
            format_section("tasks, and what each waits for", lambda: describe_tasks(loop)),
        ]
        write_diagnosis(folder, f"{name}-tasks", "\n".join(parts))

    with ExitStack() as ends:
        ends.callback(_remove_if_empty, Path(stacks.name))
        ends.enter_context(stacks)
        if threading.current_thread() is threading.main_thread():
            ends.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, write_tasks))
        faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
        ends.callback(faulthandler.unregister, signal.SIGUSR2)
        ends.callback(loop.set_exception_handler, loop.get_exception_handler())
        loop.set_exception_handler(_Unawaited(folder / f"{name}-errors.txt", report))
        if watchdog_s:
            ends.enter_context(Watchdog(folder, name, watchdog_s, report=report, more=more))
        yield


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


def newest_diagnoses(run_dir: Path, count: int) -> list[Path]:
    """Return the last diagnoses of a run, newest first, without empty files."""
    found: list[tuple[int, Path]] = []
    for path in (run_dir / FOLDER).glob("*.txt"):
        with suppress(OSError):  # removed since
            facts = path.stat()
            if facts.st_size:
                found.append((facts.st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)[:count]]


class _Unawaited:
    """The loop's exception handler: keeps errors that nobody awaited."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self._path, self._report_line = path, report

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Append the error with its traceback to a file, and report it in one line."""
        line = str(context.get("message", "an error in the event loop"))
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        if isinstance(task, asyncio.Task):
            line += f" (task {task.get_name()})"
        if error is not None:
            line += f": {type(error).__name__}: {error_text(error)}"
        rest = [
            f"  {key}: {safe_repr(value)}" for key, value in context.items() if key != "message"
        ]
        trace = traceback.format_exception(error) if error is not None else []
        text = "\n".join([f"{format_time()} {line}", *rest, "".join(trace)])
        with (
            suppress(OSError),  # a full disk: the line is still reported
            self._path.open("a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(f"{text}\n")
        self._report_line(" ".join(line.split()))

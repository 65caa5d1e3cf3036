"""Why a process hangs, in files below ``<run_dir>/diagnostics`` that a person can read.

Asked: SIGUSR1 writes all asyncio tasks with what they wait for, SIGUSR2 all threads. SIGUSR1 is
answered by Python code, so not while C code holds the main thread; SIGUSR2 always, by C code.
Unasked: a watchdog writes both when the event loop stands still, and errors that nobody awaited are
kept. None of it disturbs the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from conf.errors import error_text
from runners.diagnostics.call_graph import shown
from runners.diagnostics.sections import clock, process_text, section, tasks_text, write_report
from runners.diagnostics.watchdog import Watchdog
from runners.store.store_error import to_store_error

FOLDER = "diagnostics"


@contextmanager
def diagnostics(
    run_dir: Path,
    name: str = "driver",
    *,
    watchdog_s: float = 0.0,
    tell: Callable[[str], None] = lambda line: None,
    more: Callable[[], str] = str,
) -> Iterator[None]:
    """Diagnose the running loop of the main thread while the block runs; 0 is no watchdog.

    ``tell`` takes a line per finding, ``more`` returns further text for a stall's file; the
    watchdog calls both from its own thread. Raises StoreError if the folder cannot be made.
    """
    loop = asyncio.get_running_loop()
    folder = run_dir / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        threads = (folder / f"{name}-threads.txt").open("a")
    except OSError as error:
        raise to_store_error(error, folder) from error

    def write_tasks(*_: object) -> None:
        parts = [
            f"The tasks of {name} (process {os.getpid()}) at {clock()}.\n",
            section("process", lambda: process_text(folder)),
            section("tasks, and what each waits for", lambda: tasks_text(loop)),
        ]
        write_report(folder, f"{name}-tasks", "\n".join(parts))

    with ExitStack() as ends:
        ends.callback(_remove_if_empty, Path(threads.name))
        ends.enter_context(threads)
        ends.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, write_tasks))
        faulthandler.register(signal.SIGUSR2, file=threads, all_threads=True)
        ends.callback(faulthandler.unregister, signal.SIGUSR2)
        ends.callback(loop.set_exception_handler, loop.get_exception_handler())
        loop.set_exception_handler(_Unawaited(folder / f"{name}-errors.txt", tell))
        if watchdog_s:
            ends.enter_context(Watchdog(folder, name, watchdog_s, tell=tell, more=more))
        yield


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


def newest(run_dir: Path, count: int) -> list[Path]:
    """Return the last diagnoses of a run, newest first; a file that is empty is none."""
    found: list[tuple[int, Path]] = []
    for path in (run_dir / FOLDER).glob("*.txt"):
        with suppress(OSError):  # removed since
            facts = path.stat()
            if facts.st_size:
                found.append((facts.st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)[:count]]


class _Unawaited:
    """Takes what nobody awaited: the loop's exception handler."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path, self._tell = path, tell

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep the error with its traceback, and tell in one line."""
        line = str(context.get("message", "an error in the event loop"))
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        if isinstance(task, asyncio.Task):
            line += f" (task {task.get_name()})"
        if error is not None:
            line += f": {type(error).__name__}: {error_text(error)}"
        rest = [f"  {key}: {shown(value)}" for key, value in context.items() if key != "message"]
        trace = traceback.format_exception(error) if error is not None else []
        text = "\n".join([f"{clock()} {line}", *rest, "".join(trace)])
        with (
            suppress(OSError),  # a full disk: the line is still told
            self._path.open("a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(f"{text}\n")
        self._tell(" ".join(line.split()))

"""Where a process hangs, on request: SIGUSR1 writes all asyncio tasks, SIGUSR2 all threads.

Both into ``<run_dir>/diagnostics``, and neither disturbs the process. SIGUSR2 is answered in C, so
it works even when the interpreter is stuck.
"""

from __future__ import annotations

import asyncio
import faulthandler
import linecache
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from runners.trajectory.store_error import store_error

_MAX_DEPTH = 50
"""Frames per task; a recursion would fill the disk."""


@contextmanager
def diagnostics(run_dir: Path, name: str = "driver") -> Iterator[None]:
    """Answer both signals while the block runs, in the running event loop of the main thread."""
    loop = asyncio.get_running_loop()
    folder = run_dir / "diagnostics"
    try:
        folder.mkdir(exist_ok=True)
        threads = (folder / f"{name}-threads.txt").open("a")
    except OSError as error:
        raise store_error(error, folder) from error

    def write_tasks(*_: object) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = folder / f"{name}-tasks-{stamp}-{os.getpid()}.txt"
        text = "\n\n".join(map(describe, asyncio.all_tasks(loop)))
        path.write_text(f"{text}\n", "utf-8", "replace")

    with threads:
        before = signal.signal(signal.SIGUSR1, write_tasks)
        faulthandler.register(signal.SIGUSR2, file=threads, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR2)
            signal.signal(signal.SIGUSR1, before)


def describe(task: asyncio.Task[Any]) -> str:
    """Return a task's name and what it waits for, from the outermost frame to the innermost."""
    lines = [f"{task.get_name()} ({'done' if task.done() else 'pending'})"]
    waits: Any = task.get_coro()
    for _ in range(_MAX_DEPTH):
        place = _place(waits)
        if place is None:
            break
        code, line = place
        source = linecache.getline(code.co_filename, line).strip()
        lines.append(f"  {code.co_filename}:{line} in {code.co_qualname}\n    {source}")
        waits = _inner(waits)
    if waits is not None:
        lines.append(f"  waits for {waits!r}")
    return "\n".join(lines)


def _place(waits: Any) -> tuple[CodeType, int] | None:
    """Return where a coroutine, generator or asynchronous generator stands."""
    for kind in ("cr", "gi", "ag"):
        frame = getattr(waits, f"{kind}_frame", None)
        if frame is not None:
            return frame.f_code, frame.f_lineno
    return None


def _inner(waits: Any) -> Any:
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        if hasattr(waits, name):
            return getattr(waits, name)
    return None

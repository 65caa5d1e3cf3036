"""Explains why an event loop is blocked: a thread that misses the loop's heartbeat writes a file.

It observes only; nothing is ended. Time in which this process did not run (SIGSTOP, a laptop's
sleep, an overloaded machine) does not count as a stall. While C code holds the interpreter's lock,
no Python thread can run: then ``faulthandler``'s thread, which needs no lock, writes the stacks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Self

from runners.system.diagnostics.sections import (
    describe_process,
    describe_tasks,
    describe_threads,
    find_blocking_frame,
    format_section,
    format_time,
    write_diagnosis,
    write_text_file,
)

_TICK_S = 1.0
_BUSY = 0.1
"""Part of a gap that a process must have computed to count as its own cause. A suspended process
computes nothing; one that held its lock may have had to share the machine, hence not more.
"""


class AwakeClock:
    """Counts the seconds in which its owner, which calls ``tick`` regularly, could run."""

    def __init__(self, tick_s: float) -> None:
        self.now = 0.0
        self._longest = 2 * tick_s
        self._last = time.monotonic()

    def tick(self) -> float:
        """Return the seconds awake so far; a longer gap counts as two ticks."""
        last, self._last = self._last, time.monotonic()
        self.now += min(self._last - last, self._longest)
        return self.now


class Watchdog:
    """Watches the running event loop during a ``with`` block of the loop's own thread."""

    def __init__(
        self,
        folder: Path,
        name: str,
        stall_s: float,
        *,
        report: Callable[[str], None],
        more: Callable[[], str] = str,
    ) -> None:
        """Prepare the thread, which the block starts.

        ``report`` takes one line per stall, ``more`` returns further text for its file; both are
        called from the watchdog's thread.
        """
        self._loop = asyncio.get_running_loop()
        self._folder, self._name, self._stall_s = folder, name, stall_s
        self._report_line, self._more = report, more
        self._tick_s = min(_TICK_S, stall_s / 5)
        self._loop_thread = threading.get_ident()
        self._beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._lock_watch = _LockWatch(folder / f"{name}-frozen.txt", stall_s)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._report: tuple[Path, str] | None = None

    def __enter__(self) -> Self:
        self._lock_watch.__enter__()  # here, since the watchdog's thread may be kept from running
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stopped.set()
        self._thread.join()
        self._lock_watch.__exit__(*details)

    def _beat(self) -> None:
        self._beats += 1
        self._timer = self._loop.call_later(self._tick_s, self._beat)

    def _watch(self) -> None:
        awake, freeze = AwakeClock(self._tick_s), self._lock_watch
        now = beaten_at = 0.0
        beats, stalled, ended = self._beats, False, False
        while not ended:
            ended = self._stopped.wait(self._tick_s)
            now = awake.tick()
            if held_s := freeze.held_s():
                self._report_line(f"the interpreter was held for {held_s:.0f} s: {freeze.path}")
            if self._beats != beats:
                if stalled:
                    self._report_end(now - beaten_at)
                beats, beaten_at, stalled = self._beats, now, False
            elif not stalled and now - beaten_at >= self._stall_s:
                stalled = True
                self._report_stall(now - beaten_at)
        if stalled:
            self._report_end(now - beaten_at)

    def _report_stall(self, silent_s: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        head = (
            f"The event loop of {self._name} (process {os.getpid()}) has not run for "
            f"{silent_s:.1f} s, since {format_time(silent_s)}.\n"
        )
        parts = [
            format_section(
                "what holds it up",
                lambda: find_blocking_frame(frame) if frame else "its thread is gone",
            ),
            format_section("process", lambda: describe_process(self._folder)),
            self._more(),
            format_section(
                "threads, the loop's first", lambda: describe_threads(self._loop_thread)
            ),
            format_section("tasks, and what each waits for", lambda: describe_tasks(self._loop)),
        ]
        text = f"{head}\n" + "\n".join(part for part in parts if part)
        path = write_diagnosis(self._folder, f"{self._name}-stall", text)
        self._report = None if path is None else (path, text)
        self._report_line(
            f"the event loop has not run for {silent_s:.0f} s: {path or 'disk refuses'}"
        )

    def _report_end(self, lasted_s: float) -> None:
        if self._report is not None:
            path, text = self._report
            write_text_file(
                path,
                f"It is over: at {format_time()} it ran again, after {lasted_s:.1f} s.\n{text}",
            )
        self._report_line(f"the event loop runs again, after {lasted_s:.0f} s")


class _LockWatch:
    """Has ``faulthandler`` write the stacks when not even the watchdog's thread can run.

    ``faulthandler`` has one timer per process, which is armed anew at every tick.
    """

    def __init__(self, path: Path, after_s: float) -> None:
        self.path = path
        self._after_s = after_s
        self._file: FileIO | None = None
        self._size = 0
        self._armed_at = self._cpu_s = 0.0

    def __enter__(self) -> Self:
        try:
            self._file = FileIO(self.path, "a")
            self._size = self._file.seek(0, os.SEEK_END)
        except OSError:  # a full disk: the rest of the watchdog works without
            self._file = None
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            if not self._size:
                self.path.unlink(missing_ok=True)

    def held_s(self) -> float:
        """Arm the timer anew; return for how long this process blocked itself, 0.0 if it did not.

        Stacks that were written in a gap with another cause (a suspended process) are removed.
        """
        if self._file is None:
            return 0.0
        faulthandler.cancel_dump_traceback_later()
        gap_s, cpu_s = time.monotonic() - self._armed_at, time.process_time() - self._cpu_s
        written = self._file.seek(0, os.SEEK_END) > self._size
        held = written and cpu_s >= _BUSY * gap_s
        with suppress(OSError):  # a full disk
            if held:
                line = f"The stacks above are those of {format_time(gap_s)}; it took {gap_s:.1f} s."
                self._file.write(f"{line}\n\n".encode())
            elif written:
                self._file.truncate(self._size)
        self._size = self._file.seek(0, os.SEEK_END)
        self._arm()
        return gap_s if held else 0.0

    def _arm(self) -> None:
        if self._file is not None:
            self._armed_at, self._cpu_s = time.monotonic(), time.process_time()
            faulthandler.dump_traceback_later(self._after_s, file=self._file)

"""The parts of a diagnosis that a person reads: threads, tasks, the process and what is around it.

Nothing that cannot be said keeps the rest from being said.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import psutil

from conf.errors import error_text
from runners.diagnostics.call_graph import await_tree, place_of

_MAX_FRAMES = 60
_FOREIGN = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def section(title: str, make: Callable[[], str]) -> str:
    """Return a part under its title."""
    try:
        text = make()
    except Exception as error:  # a diagnosis's top: the other parts are still wanted
        text = f"(not to be had: {type(error).__name__}: {error_text(error)})"
    return f"== {title} ==\n{text or '(none)'}\n"


def tasks_text(loop: asyncio.AbstractEventLoop) -> str:
    """Return every pending task of a loop with its await chain."""
    return await_tree(asyncio.all_tasks(loop), loop)


def threads_text(first: int | None = None) -> str:
    """Return where every Python thread stands, the one whose ident is given first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != first)
    return "\n".join(
        f"{names.get(ident, 'unknown')}\n{stack_text(frame)}" for ident, frame in frames
    )


def stack_text(frame: FrameType) -> str:
    """Return a thread's frames, the innermost last."""
    frames = _outwards(frame)
    lines = [line for at in reversed(frames[:_MAX_FRAMES]) for line in _place(at).splitlines()]
    left_out = len(frames) - _MAX_FRAMES
    if left_out > 0:
        lines.insert(0, f"({left_out} outer frames left out)")
    return "\n".join(f"  {line}" for line in lines)


def culprit(frame: FrameType) -> str:
    """Return the innermost place of a thread that is in no library: what one looks at first."""
    frames = _outwards(frame)
    own = [at for at in frames if not at.f_code.co_filename.startswith((*_FOREIGN, "<"))]
    return _place((own or frames)[0])


def process_text(folder: Path) -> str:
    """Return what this process uses, what the machine has left, and its child processes."""
    me = psutil.Process()
    with me.oneshot():
        used = me.cpu_times()
        lines = [
            f"process {me.pid}, up {time.time() - me.create_time():.0f} s, "
            f"cpu {used.user + used.system:.1f} s, {me.num_threads()} threads, "
            f"memory {me.memory_info().rss >> 20} MB, open files {me.num_fds()}",
        ]
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(folder)
    lines.append(
        f"machine: load {load} on {os.cpu_count()} cores, memory free {memory.available >> 20} MB, "
        f"disk free {disk.free >> 20} MB under {folder}"
    )
    for child in me.children(recursive=True):
        try:
            command = " ".join(" ".join(child.cmdline()).split())[:120] or f"[{child.name()}]"
            lines.append(f"child {child.pid} of {child.ppid()}, {child.status()}: {command}")
        except psutil.Error:  # gone since
            continue
    return "\n".join(lines)


def clock(ago_s: float = 0.0) -> str:
    """Return the time of day so many seconds ago."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(time.time() - ago_s))


def write_report(folder: Path, name: str, text: str) -> Path | None:
    """Write a file of its own for a diagnosis; None if the disk refuses, which is no reason to stop
    what is diagnosed.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"{name}-{stamp}-{os.getpid()}.txt"
    return path if overwrite(path, text) else None


def overwrite(path: Path, text: str) -> bool:
    """Write a diagnosis, whatever is in it; return whether the disk took it."""
    try:
        path.write_text(text, "utf-8", "backslashreplace")
    except OSError:
        return False
    return True


def _outwards(frame: FrameType) -> list[FrameType]:
    frames: list[FrameType] = []
    at: FrameType | None = frame
    while at is not None:
        frames.append(at)
        at = at.f_back
    return frames


def _place(frame: FrameType) -> str:
    return place_of(frame.f_code, frame.f_lineno)

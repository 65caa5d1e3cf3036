"""Formats the sections of a diagnosis: threads, tasks, the process and its machine.

A section that fails says so and does not keep the others from being written.
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
from traceback import walk_stack
from types import FrameType

import psutil

from conf.errors import error_text
from runners.system.diagnostics.call_graph import format_await_tree, format_location

_MAX_FRAMES = 60
_FOREIGN = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def format_section(title: str, make: Callable[[], str]) -> str:
    """Return a section: its title and the text that ``make`` returns, or why there is none."""
    try:
        text = make()
    except Exception as error:  # the other sections are still wanted
        text = f"(not to be had: {type(error).__name__}: {error_text(error)})"
    return f"== {title} ==\n{text or '(none)'}\n"


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Return every pending task of a loop with its await chain."""
    return format_await_tree(asyncio.all_tasks(loop), loop)


def describe_threads(first: int | None = None) -> str:
    """Return the stack of every Python thread, beginning with the thread ``first``."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != first)
    return "\n".join(
        f"{names.get(ident, 'unknown')}\n{describe_stack(frame)}" for ident, frame in frames
    )


def describe_stack(frame: FrameType) -> str:
    """Return a thread's frames, the innermost last."""
    frames = [at for at, _ in walk_stack(frame)]
    lines = [
        line for at in reversed(frames[:_MAX_FRAMES]) for line in _format_frame(at).splitlines()
    ]
    left_out = len(frames) - _MAX_FRAMES
    if left_out > 0:
        lines.insert(0, f"({left_out} outer frames left out)")
    return "\n".join(f"  {line}" for line in lines)


def find_blocking_frame(frame: FrameType) -> str:
    """Return the innermost frame of a thread that is in no library: the one to look at first."""
    frames = [at for at, _ in walk_stack(frame)]
    own = [at for at in frames if not at.f_code.co_filename.startswith((*_FOREIGN, "<"))]
    return _format_frame((own or frames)[0])


def describe_process(folder: Path) -> str:
    """Return the resources of this process and its machine, and its child processes."""
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


def format_time(ago_s: float = 0.0) -> str:
    """Return the local time, or that of ``ago_s`` seconds ago."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(time.time() - ago_s))


def write_diagnosis(folder: Path, name: str, text: str) -> Path | None:
    """Write a diagnosis to a new file; return None if the disk refuses.

    A full disk must not end the process that is diagnosed.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"{name}-{stamp}-{os.getpid()}.txt"
    return path if write_text_file(path, text) else None


def write_text_file(path: Path, text: str) -> bool:
    """Write any text, invalid characters escaped; return whether the disk took it."""
    try:
        path.write_text(text, "utf-8", "backslashreplace")
    except OSError:
        return False
    return True


def _format_frame(frame: FrameType) -> str:
    return format_location(frame.f_code, frame.f_lineno)

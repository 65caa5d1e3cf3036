"""Add up the CPU time that an attempt's sandboxes use, where it is measured.

The kernel counts it (``/proc/PID/stat``): a process's own time and that of the children it waited
for. So a program whose parent ignores its end is not counted, and the sum is a lower bound.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CPU_S = "cpu_s"
"""Entry of a rollout's ``extra``: CPU seconds of its sandboxes; absent where none is measured."""
_MOST = 4096
"""Processes of one sandbox that are looked at; its limit of processes is lower."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class CpuMeter:
    """The CPU time of the commands that ran while it was entered; mutated by ``add_cpu_time``."""

    seconds: float | None = None
    """None: no command's time was measured."""


_METER: ContextVar[CpuMeter | None] = ContextVar("cpu_meter", default=None)
"""Tasks that are made while it is set have it, too."""


@contextmanager
def measure_cpu_time() -> Iterator[CpuMeter]:
    """Yield a meter of the commands that are run in this context, and in tasks made in it."""
    token = _METER.set(meter := CpuMeter())
    try:
        yield meter
    finally:
        _METER.reset(token)


def add_cpu_time(seconds: float | None) -> None:
    """Add a command's CPU time to the meter of this context, if there is one."""
    if seconds is not None and (meter := _METER.get()) is not None:
        meter.seconds = (meter.seconds or 0.0) + seconds


def read_cpu_time(pid: int) -> float | None:
    """Return the CPU seconds of a process and of the children it waited for; None if it is gone.

    One that has ended is not gone before it is waited for.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        # the command's name, in parentheses, may have blanks and parentheses of its own
        fields = line.rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    except (OSError, ValueError):
        return None


class TreeTimes(NamedTuple):
    """A look at a process and its descendants, with the children they waited for."""

    cpu_s: float
    is_ready: bool
    """One of them has a processor, or waits for one or for a disk: it does not sleep."""


def read_tree_times(pid: int) -> TreeTimes:
    """Look at a process and its descendants.

    What the kernel kills together with a pid namespace is not counted afterwards: this is for
    before.
    """
    whole, left, seen, is_ready = 0.0, [pid], 0, False
    while left and seen < _MOST:
        seen += 1
        each = left.pop()
        whole += read_cpu_time(each) or 0.0
        with suppress(OSError):  # it ended meanwhile
            for task in os.listdir(f"/proc/{each}/task"):  # noqa: PTH208 (thousands of Path objects)
                children = Path(f"/proc/{each}/task/{task}/children").read_text()
                left.extend(map(int, children.split()))
                state = Path(f"/proc/{each}/task/{task}/stat").read_text("utf-8", "replace")
                is_ready = is_ready or state.rpartition(")")[2].split()[0] in ("R", "D")
    return TreeTimes(whole, is_ready)

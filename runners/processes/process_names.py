"""Whose it is: what a process makes outside its run directory bears a name that says which process
that was, so that any later one can tell what a killed one left.

The name holds pid, start time and pid namespace: pids are used again, and those of another
container mean nothing here, so that its things are left alone.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

PREFIX = "agentrl-"
_numbers = itertools.count()


def make_unique_name() -> str:
    """Return a new name of this process, fit for a file."""
    pid = os.getpid()
    return f"{PREFIX}{_namespace()}-{pid}-{_started(pid)}-{next(_numbers)}"


def is_stale(name: str) -> bool:
    """Whether it is the name of a process of this machine that is gone."""
    parts = name.removeprefix(PREFIX).split("-")
    if not name.startswith(PREFIX) or len(parts) != 4 or not all(map(str.isdigit, parts)):
        return False
    namespace, pid, started, _ = map(int, parts)
    return namespace == _namespace() and _started(pid) != started


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _started(pid: int) -> int | None:
    """Return when a living process started, in clock ticks since boot."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])

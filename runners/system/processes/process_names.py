"""Process-unique names: what a process makes outside its run directory is named after the process.

A name holds the pid namespace, the pid and the start time of its process, so any later process can
check whether that process is gone, and what it made is stale. All three are needed: pids are
reused, and a pid of another container or machine means nothing in this one.
"""

from __future__ import annotations

import itertools
import os
import socket
import zlib
from pathlib import Path

PREFIX = "agentrl-"
_numbers = itertools.count()


def make_unique_name() -> str:
    """Return a new name that bears this process's identity and can be a file name."""
    pid = os.getpid()
    return f"{PREFIX}{_pid_namespace()}-{pid}-{_start_time(pid)}-{next(_numbers)}"


def is_stale(name: str) -> bool:
    """Return whether the process that made this name is gone.

    False for names that are not ours or were made in another container: those are left alone.
    """
    parts = name.removeprefix(PREFIX).split("-")
    if not name.startswith(PREFIX) or len(parts) != 4 or not all(map(str.isdigit, parts)):
        return False
    namespace, pid, started, _ = map(int, parts)
    return namespace == _pid_namespace() and _start_time(pid) != started


def _pid_namespace() -> int:
    """Return a number for this pid namespace.

    The initial namespace has the same inode on every machine, and a cache may be on a file system
    that machines share, so the host's name is mixed in.
    """
    return Path("/proc/self/ns/pid").stat().st_ino ^ zlib.crc32(socket.gethostname().encode())


def _start_time(pid: int) -> int | None:
    """Return when a living process started, in clock ticks since boot (proc(5), field 22)."""
    try:
        # The second field is the command's name in parentheses, which may contain spaces and
        # parentheses of its own: count the fields from the last ")".
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])  # zombie or dead: runs nothing any more

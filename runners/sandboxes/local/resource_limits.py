"""A limit on the number of processes per sandbox, by control group, for a driver that runs as root.

RLIMIT_NPROC does not bind the host's root user, and a command's uid 1000 is root outside. Whoever
is not root has RLIMIT_NPROC, which the kernel counts per user namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from runners.processes.process_names import PREFIX, is_stale

HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""Version 1 has a hierarchy per controller, version 2 one for all."""

KILL_S = 5.0
"""From SIGKILL to an empty group."""


class PidsControlGroup:
    """One parent group per backend, one child per sandbox."""

    def __init__(self, parent: Path, processes: int) -> None:
        self._parent = parent
        self._processes = processes

    @classmethod
    def find(cls, name: str, processes: int) -> PidsControlGroup | None:
        """Make the parent group ``name``; None where that is not possible."""
        if os.geteuid() != 0:
            return None
        for hierarchy in HIERARCHIES:
            parent = Path(hierarchy) / name
            try:
                parent.mkdir()
            except OSError:
                continue
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text("+pids")  # version 2
            groups = cls(parent, processes)
            try:
                groups.add("probe")
                groups.remove("probe")
            except OSError:
                groups.close()
                continue
            return groups
        return None

    def add(self, name: str) -> None:
        """Make a sandbox's group; raises OSError."""
        group = self._parent / name
        group.mkdir()
        (group / "pids.max").write_text(str(self._processes))

    def admit(self, name: str, pid: int) -> None:
        """Move a process, and with it all it will start, into a sandbox's group; raises OSError."""
        (self._parent / name / "cgroup.procs").write_text(str(pid))

    def remove(self, name: str) -> None:
        """Remove a group whose processes are gone."""
        with contextlib.suppress(OSError):
            (self._parent / name).rmdir()

    def close(self) -> None:
        """Remove every group that is left."""
        with contextlib.suppress(OSError):
            for group in self._parent.iterdir():
                if group.is_dir():
                    self.remove(group.name)
            self._parent.rmdir()


def end_orphans() -> None:
    """Kill what runs in the groups of backends whose process was killed, and remove them: also what
    cleared its environment.
    """
    for hierarchy in HIERARCHIES:
        for parent in Path(hierarchy).glob(f"{PREFIX}*"):
            if is_stale(parent.name):
                _empty(parent)
                PidsControlGroup(parent, 0).close()


def _empty(parent: Path) -> None:
    until = time.monotonic() + KILL_S
    while (pids := _members(parent)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if pid in _members(parent):  # still: no other process has got its pid
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        time.sleep(0.01)


def _members(parent: Path) -> set[int]:
    return {
        int(pid) for group in parent.glob("*/cgroup.procs") for pid in group.read_text().split()
    }

"""A limit on the number of processes per sandbox, by control group, for a driver that runs as root.

RLIMIT_NPROC does not bind the host's root user, and a command's uid 1000 is root outside. Whoever
is not root has RLIMIT_NPROC, which the kernel counts per user namespace.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

PREFIX = "agentrl-"
HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""Version 1 has a hierarchy per controller, version 2 one for all."""


_numbers = itertools.count()


class ProcessGroups:
    """One parent group per backend, one child per sandbox."""

    def __init__(self, parent: Path, processes: int) -> None:
        self._parent = parent
        self._processes = processes

    @classmethod
    def find(cls, processes: int) -> ProcessGroups | None:
        """Make the parent group; None where that is not possible."""
        if os.geteuid() != 0:
            return None
        for hierarchy in HIERARCHIES:
            _remove_orphans(Path(hierarchy))
            parent = Path(hierarchy) / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
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


def _remove_orphans(hierarchy: Path) -> None:
    """Remove the groups of backends whose process was killed."""
    for parent in hierarchy.glob(f"{PREFIX}*-*"):
        owner = parent.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            ProcessGroups(parent, 0).close()

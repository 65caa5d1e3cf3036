"""Limit what a sandbox uses: per process by rlimits, its number of processes by a control group.

RLIMIT_NPROC does not bind the host's root user, and if the driver is root, so is a command's uid
1000 outside its namespace. Then the pids controller of control groups counts instead. A driver that
is not root cannot make control groups, but RLIMIT_NPROC binds it, and the kernel counts that per
user namespace, so per command.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

from conf.sections.sandbox import LocalSandboxConfig
from runners.processes.process_names import PREFIX, is_stale

HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""Version 1 has a hierarchy per controller, version 2 one for all."""

KILL_S = 5.0
"""From SIGKILL to an empty group."""


def set_limits(pid: int, settings: LocalSandboxConfig, *, namespaced: bool) -> None:
    """Set the rlimits of a launcher, which its command inherits; raises OSError.

    prlimit(2) from outside: setting them in the child before exec would need ``preexec_fn``, and
    with that the spawn is a slow fork of the driver instead of a vfork.
    """
    wanted = {
        resource.RLIMIT_AS: settings.memory_mb << 20,
        resource.RLIMIT_FSIZE: settings.file_mb << 20,
        resource.RLIMIT_CPU: settings.cpu_s,
        resource.RLIMIT_CORE: 0,
    }
    if namespaced:  # otherwise it would count all processes of this user
        wanted[resource.RLIMIT_NPROC] = settings.processes
    for kind, value in wanted.items():
        hard = resource.prlimit(pid, kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (value, value))


class PidsControlGroup:
    """A backend's control group, with one child group per sandbox that limits its processes."""

    def __init__(self, parent: Path, processes: int) -> None:
        self._parent = parent
        self._processes = processes

    @classmethod
    def create(cls, name: str, processes: int) -> PidsControlGroup | None:
        """Make the parent group ``name``; return None where that is not possible."""
        if os.geteuid() != 0:
            return None
        for hierarchy in HIERARCHIES:
            parent = Path(hierarchy) / name
            try:
                parent.mkdir()
            except OSError:
                continue
            with contextlib.suppress(OSError):
                # Version 2 has a controller in a group only if the parent passes it on; version 1
                # has no such file.
                (parent / "cgroup.subtree_control").write_text("+pids")
            groups = cls(parent, processes)
            try:  # a hierarchy without the pids controller has no pids.max
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

    def move_process(self, name: str, pid: int) -> None:
        """Move a process into a sandbox's group; all that it starts will be in it. Raises OSError.

        What it has started before stays outside, so this comes before the command.
        """
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


def remove_stale_groups() -> None:
    """Kill what runs in the groups of backends whose process was killed, and remove the groups.

    A process can clear its environment and so lose its tag, but it cannot leave its group.
    """
    for hierarchy in HIERARCHIES:
        for parent in Path(hierarchy).glob(f"{PREFIX}*"):
            if is_stale(parent.name):
                _kill_members(parent)
                PidsControlGroup(parent, 0).close()


def _kill_members(parent: Path) -> None:
    """Kill until a look finds none: a member may fork between being listed and being killed."""
    until = time.monotonic() + KILL_S
    while (pids := _members(parent)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    if pid in _members(parent):  # still: the pid was not reused before pidfd_open
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
        time.sleep(0.01)


def _members(parent: Path) -> set[int]:
    return {
        int(pid) for group in parent.glob("*/cgroup.procs") for pid in group.read_text().split()
    }

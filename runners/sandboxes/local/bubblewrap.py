"""Isolation by bubblewrap: user, mount, pid, network, ipc, uts and cgroup namespaces of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from runners.sandboxes.local.isolation import (
    AGENT_ID,
    BIN,
    LAUNCHER,
    SYSTEM_DIRECTORIES,
    TMP_BYTES,
    WORKDIR,
    Interior,
    Place,
)


class Bubblewrap:
    """Everything but the workspace and /tmp is read-only or absent; no root rights inside."""

    name = "bubblewrap"
    namespaced = True

    def __init__(self, interior: Interior) -> None:
        self._interior = interior
        self._program = shutil.which("bwrap") or "bwrap"
        self._fixed = [*self._namespaces(), *self._file_system()]

    def prepare(self, place: Place) -> None:
        """Do nothing: bubblewrap mounts as it starts."""

    def workdir(self, place: Place) -> str:
        """Return where the workspace is mounted."""
        return WORKDIR

    def environment(self, place: Place) -> dict[str, str]:
        """Return the environment of commands."""
        return self._interior.environment(BIN)

    def arguments(self, place: Place, argv: list[str]) -> list[str]:
        """Return a command as it is."""
        return argv

    def command(self, place: Place, launch: list[str], deny: int | None, tell: int) -> list[str]:
        """Return bubblewrap's command line."""
        binds = ["--bind", str(place.workspace), WORKDIR]
        for inside, host in place.mounts.items():
            binds += ["--ro-bind", str(host), inside]
        # The root is a tmpfs that a command could fill: closed once everything is mounted in it.
        binds += ["--remount-ro", "/", "--chdir", WORKDIR, "--info-fd", str(tell)]
        if deny is not None:
            binds += ["--seccomp", str(deny)]
        start = [f"{BIN}/python", "-I", "-S", LAUNCHER, *launch]
        return [self._program, *self._fixed, *binds, "--", *start]

    def _namespaces(self) -> list[str]:
        # --as-pid-1: the launcher is the init; with it gone the kernel has killed the rest, and
        # bubblewrap, its parent, reaps it. Bubblewrap's own init would be left to the host's.
        return [
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--new-session",
            "--die-with-parent",
            "--as-pid-1",
            *("--uid", str(AGENT_ID), "--gid", str(AGENT_ID), "--hostname", "sandbox"),
        ]

    def _file_system(self) -> list[str]:
        arguments: list[str] = []
        for name in SYSTEM_DIRECTORIES:
            if Path(name).is_symlink():
                arguments += ["--symlink", os.readlink(name), name]  # noqa: PTH115 (text as it is)
            elif Path(name).is_dir():
                arguments += ["--ro-bind", name, name]
        for inside, host in self._interior.shared().items():
            arguments += ["--ro-bind", str(host), inside]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        for name in ("/dev/shm", "/tmp"):
            arguments += ["--size", str(TMP_BYTES), "--tmpfs", name]
        # /proc too: to a driver that is root, the host's kernel settings (/proc/sys) are files of
        # its own, which no missing capability keeps it from writing.
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/proc"]

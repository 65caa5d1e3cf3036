"""What the inside of a sandbox looks like, whatever isolates it.

``/workspace`` is the workspace, ``/tmp`` is private, ``python`` is the interpreter agentrl runs on
(without its virtual environment), and of the host only the system directories are to be seen.
"""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.program import compile_program

WORKDIR = "/workspace"
LAUNCHER = "/opt/agentrl/launcher"
BIN = "/opt/agentrl/bin"
TMP_BYTES = 256 << 20
SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
"""What programs need of /etc to start; nothing in it names this host or its users."""


@dataclass(frozen=True, slots=True)
class Interior:
    """The host's side of what all sandboxes of a backend share, read-only."""

    root: Path
    """Holds ``bin`` (``python``, ``python3``) and ``etc``."""
    python_prefix: Path
    """Where the interpreter and its standard library are."""
    launcher: Path

    @classmethod
    def make(cls, root: Path) -> Interior:
        """Write the shared files below ``root``."""
        prefix = Path(sys.base_prefix).resolve()
        executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        (root / "bin").mkdir(parents=True)
        for name in ("python", "python3"):
            (root / "bin" / name).symlink_to(executable)
        etc = root / "etc"
        etc.mkdir()
        (etc / "passwd").write_text(f"agent:x:{AGENT_ID}:{AGENT_ID}::/tmp:/bin/bash\n")
        (etc / "group").write_text(f"agent:x:{AGENT_ID}:\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        for name in ETC:
            found = Path("/etc") / name
            if found.is_dir():
                shutil.copytree(found, etc / name, symlinks=True)
            elif found.exists():
                shutil.copy2(found, etc / name)
        return cls(root, prefix, compile_program(Path(__file__).resolve().with_name("launcher.py")))

    def environment(self, binaries: str) -> dict[str, str]:
        """Return the environment of commands; ``binaries`` is where ``python`` is found inside."""
        return {
            "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_AUTHOR_NAME": "agent",
            "GIT_AUTHOR_EMAIL": "agent@sandbox",
            "GIT_COMMITTER_NAME": "agent",
            "GIT_COMMITTER_EMAIL": "agent@sandbox",
        }

    def shared(self) -> dict[str, Path]:
        """Return what every sandbox sees read-only besides the system directories."""
        shared = {BIN: self.root / "bin", "/etc": self.root / "etc", LAUNCHER: self.launcher}
        if not self.python_prefix.is_relative_to("/usr"):
            shared[str(self.python_prefix)] = self.python_prefix
        return shared


AGENT_ID = 1000
"""User and group id of commands inside."""


@dataclass(frozen=True, slots=True)
class Place:
    """What differs between two sandboxes of a backend."""

    home: Path
    """Private directory on the host; ``home/workspace`` is the workspace."""
    mounts: Mapping[str, Path]
    """Read-only host paths by their path inside."""

    @property
    def workspace(self) -> Path:
        """The workspace on the host."""
        return self.home / "workspace"


class Isolation(Protocol):
    """One way to run a command apart from the host."""

    name: str
    namespaced: bool
    """It has its own process, network and mount namespaces."""

    def prepare(self, place: Place) -> None:
        """Make what a new sandbox needs on the host besides its workspace."""
        ...

    def workdir(self, place: Place) -> str:
        """Return the workspace's path as commands see it."""
        ...

    def environment(self, place: Place) -> dict[str, str]:
        """Return the environment that every command starts from."""
        ...

    def arguments(self, place: Place, argv: list[str]) -> list[str]:
        """Return a command as it must be called inside."""
        ...

    def command(self, place: Place, launch: list[str], deny: int | None, tell: int) -> list[str]:
        """Return the host's command line: the launcher with its arguments ``launch``.

        ``deny`` is an open descriptor of the seccomp program, if there is one. On ``tell`` the host
        is told the pid early, if it is not that of what it starts: ``Launcher.begun``.
        """
        ...


def set_limits(pid: int, settings: LocalSandboxConfig, *, namespaced: bool) -> None:
    """Set the resource limits of a launcher, which its command inherits; raises OSError."""
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

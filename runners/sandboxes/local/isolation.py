"""Isolate a command from the host, by bubblewrap, by unshare or not at all; lay out its inside.

With namespaces the inside is always the same: ``/workspace`` is the workspace, ``/tmp`` is private,
``python`` is the interpreter that agentrl runs on (without its virtual environment), and of the
host only the system directories can be seen, read-only. Commands run as an ordinary user.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runners.sandboxes.contract import BASE_ENVIRONMENT, compile_program
from runners.sandboxes.local.shares import find_wrapper, shares

PROGRAMS = Path(__file__).resolve().with_name("inside")
"""Programs of ours that run in sandboxes."""
AGENT_ID = 1000
"""User and group id of commands inside."""
WORKDIR = "/workspace"
LAUNCHER = "/opt/agentrl/launcher"
BIN = "/opt/agentrl/bin"
TMP_BYTES = 256 << 20
SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
"""Entries of /etc that programs need to start; nothing in them names this host or its users."""
_PYTHON = ("-I", "-S")
"""Isolated and without ``site``: nothing of the user's or the workspace's is imported at start."""


@dataclass(frozen=True, slots=True)
class Interior:
    """Host files that all sandboxes of a backend share, read-only."""

    root: Path
    """Holds ``bin`` (``python``, ``python3``) and ``etc``."""
    python_prefix: Path
    """Directory of the interpreter and its standard library."""
    launcher: Path

    @classmethod
    def make(cls, root: Path) -> Interior:
        """Write the shared files below ``root``; raises OSError."""
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
        return cls(root, prefix, compile_program(PROGRAMS / "launcher.py"))

    def environment(self, binaries: str) -> dict[str, str]:
        """Return the environment of commands; ``python`` inside is in ``binaries``."""
        path = f"{binaries}:/usr/local/bin:/usr/bin:/bin"
        return {**BASE_ENVIRONMENT, "PATH": path, "HOME": "/tmp"}

    def shared(self) -> dict[str, Path]:
        """Return the read-only mounts of every sandbox, besides the system directories."""
        shared = {BIN: self.root / "bin", "/etc": self.root / "etc", LAUNCHER: self.launcher}
        if not self.python_prefix.is_relative_to("/usr"):
            shared[str(self.python_prefix)] = self.python_prefix
        return shared


@dataclass(frozen=True, slots=True)
class SandboxHome:
    """A sandbox's private directory on the host, and its mounts: all that differs between two."""

    directory: Path
    """``directory/workspace`` is the workspace."""
    mounts: Mapping[str, Path]
    """Read-only host paths by their path inside."""
    workdir: str = WORKDIR
    """Path of the workspace inside."""
    trees: Mapping[str, Path] = field(default_factory=dict)
    """Writable host directories by their path inside, besides the workspace."""

    @property
    def workspace(self) -> Path:
        """The workspace on the host."""
        return self.directory / "workspace"

    @property
    def writable(self) -> list[tuple[str, Path]]:
        """The writable directories, each after those in which it lies."""
        return sorted({**self.trees, self.workdir: self.workspace}.items())


class Isolation(ABC):
    """One way to run a command apart from the host; with namespaces the inside looks the same."""

    name: str
    namespaced = True
    """It has its own process, network and mount namespaces."""

    def __init__(self, interior: Interior) -> None:
        self._interior = interior

    def prepare(self, home: SandboxHome) -> None:  # noqa: B027 (nothing by default)
        """Make what a new sandbox needs on the host besides its workspace; raises OSError."""

    def workdir(self, home: SandboxHome) -> str:
        """Return the workspace's path as commands see it."""
        return home.workdir

    def environment(self, home: SandboxHome) -> dict[str, str]:
        """Return the environment that every command starts from."""
        return self._interior.environment(BIN)

    def arguments(self, home: SandboxHome, argv: list[str]) -> list[str]:
        """Return a command as it must be called inside."""
        return argv

    @abstractmethod
    def command_line(
        self, home: SandboxHome, launch: list[str], seccomp_fd: int | None, pid_fd: int
    ) -> list[str]:
        """Return the host's command line that starts the launcher with its arguments ``launch``.

        ``seccomp_fd`` is an open descriptor of the seccomp program, None if there is none. With
        namespaces, ``{"child-pid": N}`` is written to ``pid_fd`` as soon as the launcher's process
        exists (``Launcher.read_pid``).
        """


class Bubblewrap(Isolation):
    """Isolation by bubblewrap: everything but the workspace and /tmp is read-only or absent.

    User, mount, pid, network, ipc, uts and cgroup namespaces of its own; no root rights inside.
    """

    name = "bubblewrap"

    def __init__(self, interior: Interior) -> None:
        super().__init__(interior)
        # bubblewrap itself writes no limits, and its namespaces have no root to write them later.
        self._wrapper = find_wrapper()
        self._program = shutil.which("bwrap") or "bwrap"
        self._fixed = [*self._namespace_arguments(), *self._mount_arguments()]

    def command_line(
        self, home: SandboxHome, launch: list[str], seccomp_fd: int | None, pid_fd: int
    ) -> list[str]:
        """Return bubblewrap's command line."""
        arguments = []
        for inside, host in home.writable:
            arguments += ["--bind", str(host), inside]
        for inside, host in home.mounts.items():
            arguments += ["--ro-bind", str(host), inside]
        # The root is a tmpfs of the host's memory, which a command could fill. It becomes read-only
        # last: bubblewrap works its arguments off in order, and makes the mount points in it.
        arguments += ["--remount-ro", "/", "--chdir", home.workdir, "--info-fd", str(pid_fd)]
        if seccomp_fd is not None:
            arguments += ["--seccomp", str(seccomp_fd)]
        start = [f"{BIN}/python", *_PYTHON, LAUNCHER, *launch]
        return [*self._wrapper, self._program, *self._fixed, *arguments, "--", *start]

    def _namespace_arguments(self) -> list[str]:
        return [
            "--unshare-user",  # without one we would keep root rights
            *("--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            *([] if self._wrapper else ["--unshare-ipc"]),  # the wrapper's has limits
            "--disable-userns",  # a nested user namespace would give a command root rights in it
            "--new-session",  # a command must not push input into the driver's terminal (TIOCSTI)
            "--die-with-parent",
            # The launcher is pid 1 instead of bubblewrap's own init: when it ends, the kernel has
            # killed everything else inside, and its parent, bubblewrap, reaps it and exits. With
            # bubblewrap's init in between, that one would be left to the host to reap.
            "--as-pid-1",
            *("--uid", str(AGENT_ID), "--gid", str(AGENT_ID), "--hostname", "sandbox"),
        ]

    def _mount_arguments(self) -> list[str]:
        arguments: list[str] = []
        for name in SYSTEM_DIRECTORIES:
            if Path(name).is_symlink():  # /bin → usr/bin: the same link inside
                arguments += ["--symlink", os.readlink(name), name]  # noqa: PTH115 (text as it is)
            elif Path(name).is_dir():
                arguments += ["--ro-bind", name, name]
        for inside, host in self._interior.shared().items():
            arguments += ["--ro-bind", str(host), inside]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        for name in ("/dev/shm", "/tmp"):
            arguments += ["--size", str(TMP_BYTES), "--tmpfs", name]
        # /dev is a tmpfs without a size limit, so only /dev/shm in it stays writable. /proc too is
        # made read-only: if the driver is root, the host's kernel settings (/proc/sys) are files
        # that its uid owns, and dropping capabilities does not stop an owner from writing.
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/proc"]


class Unshare(Isolation):
    """Isolation by util-linux's ``unshare``, for machines without bubblewrap.

    ``unshare_setup.py`` then mounts the same inside as bubblewrap's.
    """

    name = "unshare"

    def __init__(self, interior: Interior) -> None:
        super().__init__(interior)
        self._program = shutil.which("unshare") or "unshare"
        self._setup = str(PROGRAMS / "unshare_setup.py")
        self._shares = shares()

    def prepare(self, home: SandboxHome) -> None:
        """Make the directory on which the new root is mounted."""
        (home.directory / "root").mkdir()

    def command_line(
        self, home: SandboxHome, launch: list[str], seccomp_fd: int | None, pid_fd: int
    ) -> list[str]:
        """Return the command line: ``unshare`` runs the set-up, which becomes the launcher."""
        system = {name: name for name in SYSTEM_DIRECTORIES if Path(name).exists()}
        read_only = {**system, **{k: str(v) for k, v in self._interior.shared().items()}}
        read_only |= {inside: str(host) for inside, host in home.mounts.items()}
        plan = {
            "root": str(home.directory / "root"),
            "read_only": read_only,
            "writable": [[str(host), inside] for inside, host in home.writable],
            "workdir": home.workdir,
            "tmp_bytes": TMP_BYTES,
            "shares": self._shares,
            "seccomp_fd": seccomp_fd,
            "pid_fd": pid_fd,
        }
        # --fork: a new pid namespace holds only children of the process that made it.
        # --map-root-user: the set-up must mount; it gives root up before the launcher starts.
        return [
            *(self._program, "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc"),
            *("--uts", "--fork", "--kill-child", "--", sys.executable, *_PYTHON, self._setup),
            *(json.dumps(plan), f"{BIN}/python", *_PYTHON, LAUNCHER, *launch),
        ]


class NoIsolation(Isolation):
    """A process of the host with resource limits, for machines where nothing else works.

    A command can write wherever the user can, use the network and see all processes. What it leaves
    running its launcher kills. Mounts are symbolic links below the sandbox's directory, and
    arguments that name one are rewritten.
    """

    name = "none"
    namespaced = False

    def prepare(self, home: SandboxHome) -> None:
        """Link the mounts; raises OSError for paths that only a namespace can give."""
        if home.trees or home.workdir != WORKDIR:
            raise OSError("without isolation there are no paths inside: install bubblewrap")
        for inside, host in home.mounts.items():
            link = self._path_outside(home, inside)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(host)
        (home.directory / "tmp").mkdir()

    def workdir(self, home: SandboxHome) -> str:
        """Return the workspace's path on the host."""
        return str(home.workspace)

    def environment(self, home: SandboxHome) -> dict[str, str]:
        """Return the environment of commands."""
        environment = self._interior.environment(str(self._interior.root / "bin"))
        temporary = str(home.directory / "tmp")
        return {**environment, "HOME": temporary, "TMPDIR": temporary}

    def arguments(self, home: SandboxHome, argv: list[str]) -> list[str]:
        """Return a command in which paths of mounts lead to the links."""
        return [self._rewrite(home, word) for word in argv]

    def command_line(
        self, home: SandboxHome, launch: list[str], seccomp_fd: int | None, pid_fd: int
    ) -> list[str]:
        """Return the launcher's own command line."""
        return [sys.executable, *_PYTHON, str(self._interior.launcher), *launch]

    def _rewrite(self, home: SandboxHome, word: str) -> str:
        inside = any(word == mount or word.startswith(f"{mount}/") for mount in home.mounts)
        return str(self._path_outside(home, word)) if inside else word

    def _path_outside(self, home: SandboxHome, inside: str) -> Path:
        return home.directory / "mounts" / inside.lstrip("/")


ISOLATIONS: Mapping[str, type[Bubblewrap | Unshare | NoIsolation]] = {
    "bubblewrap": Bubblewrap,
    "unshare": Unshare,
    "none": NoIsolation,
}
"""By the configuration's name, strongest first: the order in which ``isolation=auto`` tries."""

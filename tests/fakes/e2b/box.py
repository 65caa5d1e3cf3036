"""A box in place of one of E2B's virtual machines, with real processes and real users.

It is bubblewrap with a writable root of its own, and with the rights that a root inside needs to
make users, change owners and kill. Where this process has no such rights to give, it gets them in a
user namespace with a range of ids (``newuidmap``). Everything in a box ends with its first process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

INIT = Path(__file__).with_name("box_init.py").resolve()
USER_ID = 1000
USERS = {"root": (0, "/root"), "user": (USER_ID, "/home/user")}
RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
AS_ROOT = [] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto", "--"]


@functools.cache
def boxes_work() -> bool:
    """Return whether this machine can make boxes."""
    if shutil.which("bwrap") is None or shutil.which("setpriv") is None:
        return False
    change = ["setpriv", "--reuid=61000", "--regid=61000", "--clear-groups", "--no-new-privs"]
    argv = [*AS_ROOT, *_bubblewrap(), "--bind", "/", "/", "--proc", "/proc", *change, "true"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _bubblewrap() -> list[str]:
    rights = [word for right in RIGHTS for word in ("--cap-add", f"CAP_{right}")]
    return ["bwrap", "--unshare-pid", "--die-with-parent", "--as-pid-1", "--clearenv", *rights]


class Process:
    """A running program; ``status`` is its wait status once ``ended`` is set."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.pid = 0
        self.status = 0
        self.started = asyncio.Event()
        self.ended = asyncio.Event()


class Box:
    """One machine."""

    def __init__(self, root: Path, *, network: bool, profile: str) -> None:
        self.root = root
        self._profile = profile
        self._network = network
        self._numbers = itertools.count()
        self._processes: dict[int, Process] = {}
        self._starting: dict[int, Process] = {}
        self._channel: socket.socket
        self._init: subprocess.Popen[bytes]

    async def boot(self) -> None:
        """Start it."""
        await asyncio.to_thread(self._make_root)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs:
            self._init = subprocess.Popen(
                self._command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        asyncio.get_running_loop().add_reader(self._channel, self._on_message)

    def _make_root(self) -> None:
        for name in ("etc", "home/user", "opt", "proc", "dev", "root", "run", "tmp", "usr", "var"):
            (self.root / name).mkdir(parents=True)
        prefix = Path(sys.base_prefix).resolve()
        # Bubblewrap would make these directories accessible to root alone.
        (self.root / prefix.relative_to("/")).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
        (self.root / "root").chmod(0o755)
        etc = self.root / "etc"
        lines = [f"{name}:x:{uid}:{uid}::{home}:/bin/bash" for name, (uid, home) in USERS.items()]
        (etc / "passwd").write_text("\n".join([*lines, ""]))
        (etc / "group").write_text(f"root:x:0:\nuser:x:{USER_ID}:\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        (etc / "profile").write_text(f"PATH={prefix / 'bin'}:$PATH\n{self._profile}")
        for name in ETC:
            found = Path("/etc") / name
            if found.is_dir():
                shutil.copytree(found, etc / name, symlinks=True)
            elif found.exists():
                shutil.copy2(found, etc / name)

    def _command(self, channel: int) -> list[str]:
        binds = ["--bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"]
        for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
            if Path(name).is_symlink():
                binds += ["--symlink", os.readlink(name), name]  # noqa: PTH115 (text as it is)
            elif Path(name).is_dir():
                binds += ["--ro-bind", name, name]
        prefix = Path(sys.base_prefix).resolve()
        if not prefix.is_relative_to("/usr"):
            binds += ["--ro-bind", str(prefix), str(prefix)]
        binds += ["--ro-bind", str(INIT), "/run/box_init.py"]
        network = [] if self._network else ["--unshare-net"]
        python = str(prefix / "bin" / f"python3.{sys.version_info.minor}")
        start = [python, "-I", "-S", "/run/box_init.py", str(channel)]
        return [*AS_ROOT, *_bubblewrap(), *network, *binds, "--", *start]

    async def start(
        self, argv: list[str], handles: list[int], *, user: str, env: dict[str, str], cwd: str
    ) -> Process:
        """Start a program on three descriptors."""
        uid, home = USERS[user]
        number = next(self._numbers)
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **{"HOME": home, "USER": user, "LOGNAME": user},
            **env,
        }
        request = {"id": number, "argv": argv, "uid": uid, "cwd": cwd or home, "env": environment}
        process = self._starting[number] = Process(argv)
        socket.send_fds(self._channel, [json.dumps(request).encode()], handles)
        await process.started.wait()
        return process

    def kill(self, pid: int, number: int) -> bool:
        """Send a signal; return whether there is such a process."""
        if pid not in self._processes:
            return False
        self._channel.send(json.dumps({"pid": pid, "signal": number}).encode())
        return True

    def processes(self) -> list[Process]:
        """Return the processes that the server started and that still run."""
        return list(self._processes.values())

    def _on_message(self) -> None:
        try:
            message: dict[str, Any] = json.loads(self._channel.recv(4096) or b"{}")
        except OSError:
            return
        if not message:
            asyncio.get_running_loop().remove_reader(self._channel)
        elif "id" in message:
            process = self._starting.pop(message["id"])
            process.pid = message["pid"]
            self._processes[process.pid] = process
            process.started.set()
        elif message["pid"] in self._processes:  # not one that the init adopted
            process = self._processes.pop(message["pid"])
            process.status = message["status"]
            process.ended.set()

    async def destroy(self) -> None:
        """Kill everything in it and remove its files."""
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._init.pid, 9)
        await asyncio.to_thread(self._init.wait)
        for process in [*self._processes.values(), *self._starting.values()]:
            process.status = 9
            process.started.set()
            process.ended.set()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        argv = [*AS_ROOT, "rm", "-rf", str(self.root)]
        subprocess.run(argv, check=False)

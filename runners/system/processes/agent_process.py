"""Tell the agent program in a local sandbox from the commands that it starts, by their connections.

The commands share the program's user and, for some programs, its environment with the session's
key. What they cannot share is the socket of a connection that they opened themselves.

Invariant: no command of the policy runs before its first answer. So besides the process that the
launcher starts, the program is every process that asked before that: an agent program that a
script starts (claude-agent-sdk), or one that starts itself again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import deque
from contextlib import suppress

AGENT = "2"
"""The program's pid inside: the launcher is 1, and forks it first. A pid below 300 is never given
out again.
"""
Address = tuple[str, int]
"""IPv4 address and port."""
MAPPED = f"{0:016X}{socket.ntohl(0xFFFF):08X}"
"""Begins an IPv4 address in the table of IPv6's sockets (``::ffff:…``)."""
TABLE_BYTES = 4 << 20
"""Read of a sandbox's connections: its commands decide how many there are."""
PROCESSES = 1000
"""Looked at before the first answer; more than any agent program starts."""


def can_tell() -> bool:
    """Return whether this kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


class AgentProcess:
    """The agent program below one launcher; ``owns`` reads what the host's kernel says of it."""

    def __init__(self, launcher: int) -> None:
        """``launcher``: pid of a sandbox's launcher on the host. Raises OSError if it has ended."""
        self.launcher = launcher
        # A descriptor of its directory in /proc stays with this process: when it has ended, and its
        # pid is another's, nothing is found there.
        self._directory = os.open(f"/proc/{launcher}", os.O_RDONLY | os.O_DIRECTORY)
        self._children = f"task/{launcher}/children"
        self._lock = asyncio.Lock()
        """One look at a time: commands that connect all the time must not take every thread."""
        self._admits = True
        self._asked: list[int] = []
        """Descriptors of the processes that asked before the first answer, as of the launcher."""

    def admit_no_more(self) -> None:
        """Take no further process for the program: call it before the policy is first asked."""
        self._admits = False

    async def owns(self, local: Address, remote: Address) -> bool:
        """Return whether the program holds the socket that is connected between two addresses."""
        async with self._lock:
            return await asyncio.to_thread(self._owns, local, remote)

    def close(self) -> None:
        """Forget the launcher."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
        while self._asked:
            os.close(self._asked.pop())

    def _owns(self, local: Address, remote: Address) -> bool:
        try:
            inode = self._find_socket(local, remote)
            if inode is None:
                return False
            return (
                any(self._is_first(pid, inode) for pid in self._read(self._children).split())
                or any(_holds(process, inode) for process in self._asked)
                or (self._admits and self._admit(inode))
            )
        except OSError:  # the launcher has ended
            return False

    def _admit(self, inode: str) -> bool:
        """Count the process that holds a socket to the program; the parent, if several do."""
        pids = deque(self._read(self._children).split())
        for _ in range(PROCESSES):
            if not pids:
                break
            with suppress(OSError):  # it ended
                process = os.open(f"/proc/{pids.popleft()}", os.O_RDONLY | os.O_DIRECTORY)
                try:
                    if _holds(process, inode) and self._admits:  # nobody was asked meanwhile
                        self._asked.append(os.dup(process))
                        return True
                    pids.extend(_list_children(process))
                finally:
                    os.close(process)
        return False

    def _find_socket(self, local: Address, remote: Address) -> str | None:
        """Return the inode of the sandbox's socket that is connected between two addresses."""
        for table, prefix in (("net/tcp", ""), ("net/tcp6", MAPPED)):
            wanted = [prefix + _hexadecimal(local), prefix + _hexadecimal(remote)]
            with suppress(FileNotFoundError):  # a kernel without IPv6
                for line in self._read(table).splitlines():
                    words = line.split()
                    if words[1:3] == wanted:
                        return words[9]
        return None

    def _is_first(self, pid: str, inode: str) -> bool:
        """Return whether a process is the one the launcher starts and has the socket open."""
        with suppress(OSError):  # it ended
            process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)
            try:
                status = _read_at(process, "status")
                pids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                return pids.split()[-1] == AGENT and _holds(process, inode)
            finally:
                os.close(process)
        return False

    def _read(self, name: str) -> str:
        return _read_at(self._directory, name)


def _hexadecimal(address: Address) -> str:
    """Return an IPv4 address and port as the kernel's tables have them."""
    number = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{number:08X}:{address[1]:04X}"


def _holds(process: int, inode: str) -> bool:
    """Return whether a process, by its directory in /proc, has a socket open."""
    with suppress(OSError):  # it ended
        fds = os.open("fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=process)
        try:
            target = f"socket:[{inode}]"
            return any(_link(fds, name) == target for name in os.listdir(fds))  # noqa: PTH208
        finally:
            os.close(fds)
    return False


def _list_children(process: int) -> list[str]:
    """Return the children of all threads of a process."""
    tasks = os.open("task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=process)
    try:
        children = (_read_at(tasks, f"{name}/children") for name in os.listdir(tasks))  # noqa: PTH208
        return [pid for pids in children for pid in pids.split()]
    finally:
        os.close(tasks)


def _read_at(directory: int, name: str) -> str:
    with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=directory), "rb") as file:
        return file.read(TABLE_BYTES).decode("latin-1")


def _link(directory: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:  # closed since
        return ""

"""Namespaces with the launcher in them, waiting for the command that they are for.

What is booted belongs to no event loop until its command runs, so it can be made ahead. The driver
is a large process, so the spawn is ``vfork`` (no ``preexec_fn``), and it happens in the event
loop's thread: a sandbox dies with the thread that spawned it.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runners.processes.process_tags import SANDBOX_TAG
from runners.sandboxes.contract import SandboxError

START_S = 30.0
"""From spawn to a launcher that is ready and admitted; takes 20 ms on an idle machine."""
END_S = 10.0
"""From SIGKILL to the last process gone."""
CLOSED = -1
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Start:
    """What is booted."""

    argv: Callable[[list[str], int], list[str]]
    """The launcher's arguments, and a descriptor to tell its pid on → the host's command line."""
    env: dict[str, str]
    """Of the launcher and all that is around it; the mark of sandboxes is in it."""
    cwd: Path | None
    namespaced: bool
    """The launcher is pid 1 of a pid namespace."""
    listens: bool
    """It opens a socket for the gateway."""
    admit: Callable[[int], None]
    """Called in a thread with the launcher's pid on the host while it is set up; raises OSError."""
    limit: Callable[[int], None]
    """Called with it when the launcher is ready, before it may start anything; raises OSError."""
    inherit: tuple[int, ...] = ()
    """More descriptors for the host's command line."""


class Launcher:
    """A launcher that waits; whoever has it runs one command in it or discards it."""

    def __init__(self, start: Start) -> None:
        """Spawn it; raises OSError."""
        self.namespaced = start.namespaced
        self.mark = start.env[SANDBOX_TAG]
        self.init = CLOSED
        """Descriptor of the launcher, once it is ready."""
        self.listener = CLOSED
        """Descriptor of the socket that the gateway is to serve."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self.status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(status)
            ours.enter_context(self.status)
            self.status.setblocking(False)
            self.status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.order = os.memfd_create("order")
            ours.callback(os.close, self.order)
            ends = [os.pipe() for _ in range(3)]
            (stdin, self.stdin), (self.stdout, stdout), (self.stderr, stderr) = ends
            for fd in (stdin, stdout, stderr):
                theirs.callback(os.close, fd)
            for fd in (self.stdin, self.stdout, self.stderr):
                ours.callback(os.close, fd)
                os.set_blocking(fd, False)
            self.told, tell = os.pipe()
            theirs.callback(os.close, tell)
            ours.callback(os.close, self.told)
            os.set_blocking(self.told, False)
            handles = [status.fileno(), self.order]
            tells = [tell] if start.namespaced else []
            self.popen = subprocess.Popen(
                start.argv([*map(str, handles), str(int(start.listens))], tell),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=start.env,
                cwd=start.cwd,
                pass_fds=[*handles, *tells, *start.inherit],
                start_new_session=True,
            )
            ours.callback(self.popen.kill)
            self.outer = os.pidfd_open(self.popen.pid)
            ours.pop_all()

    def give(self, argv: list[str], env: dict[str, str]) -> None:
        """Let it start its command; raises OSError if it is gone, ValueError for a zero byte."""
        words = [str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
        if any("\0" in word for word in words):
            raise ValueError("a zero byte in a command's arguments or environment")
        with os.fdopen(self.order, "wb") as order:
            self.order = CLOSED
            order.write("\0".join(words).encode("utf-8", "surrogateescape"))
        self.status.send(b"g")

    def kill(self) -> None:
        """Kill the launcher: with its pid namespace goes everything; its parent reaps and exits."""
        if self.popen.returncode is not None:
            return  # it ended, and its pid may be another's by now
        with contextlib.suppress(ProcessLookupError):
            if self.init != CLOSED:
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
            else:
                self.popen.kill()
            if not self.namespaced:
                os.killpg(self.popen.pid, signal.SIGKILL)

    def alive(self) -> bool:
        """Whether it still waits."""
        return self.popen.poll() is None

    def discard(self) -> None:
        """End one that ran nothing; blocks for some milliseconds."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_S)
        self.close()

    def close_stdin(self) -> None:
        """Let the command see the end of its input."""
        self.stdin = _closed(self.stdin)

    def close_listener(self) -> None:
        """Give up our hold on the gateway's socket: it ends with the gateway's."""
        self.listener = _closed(self.listener)

    def close(self) -> None:
        """Close whatever is open."""
        self.status.close()
        self.close_stdin()
        self.close_listener()
        self.init, self.told = _closed(self.init), _closed(self.told)
        self.order, self.outer = _closed(self.order), _closed(self.outer)
        self.stdout, self.stderr = _closed(self.stdout), _closed(self.stderr)

    async def begun(self) -> int:
        """Return the launcher's pid while everything around it is still made; raises SandboxError.

        It is told as bubblewrap does (``--info-fd``): an object of JSON with ``child-pid``.
        """
        if not self.namespaced:
            return self.popen.pid
        said = b""
        while not said.endswith(b"}\n"):
            await _readable(self.told, self.outer)
            try:
                part = os.read(self.told, 4096)
            except BlockingIOError:  # it ended, and a process that it left behind holds the pipe
                part = b""
            if not part:
                raise self._failure()
            said += part
        self.told = _closed(self.told)
        try:
            return int(json.loads(said)["child-pid"])
        except (ValueError, KeyError) as error:
            raise SandboxError(f"the sandbox told no process id but {said!r}") from error

    async def ready(self) -> int:
        """Return the launcher's pid when it has announced itself; raises SandboxError."""
        await _readable(self.status.fileno(), self.outer)
        try:
            pid = self._announced()
        except OSError as error:
            raise SandboxError(f"cannot start a sandbox: {error}") from error
        if pid is None:
            raise self._failure()
        return pid

    def _failure(self) -> SandboxError:
        """Return what to say of one that ended before it was ready."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_S)
        said = os.read(self.stderr, 1 << 16)[-500:].decode(errors="replace").strip()
        return SandboxError(f"the sandbox did not start; it said: {said or 'nothing'}")

    def _announced(self) -> int | None:
        integers = array.array("i")
        space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(integers.itemsize)
        try:
            message, ancillary, _, _ = self.status.recvmsg(64, space, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, ConnectionResetError):
            return None
        pid: int | None = None
        for _, kind, payload in ancillary:
            if kind == socket.SCM_RIGHTS:
                integers.frombytes(payload)
                self.listener = integers[0]
            else:
                pid = _CREDENTIALS.unpack(payload)[0]
        if message != b"ready" or pid is None:
            return None
        self.init = os.pidfd_open(pid)
        return pid


def _closed(fd: int) -> int:
    """Close a descriptor that is open."""
    if fd != CLOSED:
        os.close(fd)
    return CLOSED


async def boot(start: Start) -> Launcher:
    """Return a launcher that waits for its command; raises SandboxError."""
    try:
        booted = Launcher(start)
    except OSError as error:
        raise SandboxError(f"cannot start a sandbox: {error}") from error
    try:
        async with asyncio.timeout(START_S):
            await _admit(booted, start)
    except TimeoutError:
        await end(booted)
        raise SandboxError(f"the sandbox did not start within {START_S:.0f} s") from None
    except OSError as error:
        await end(booted)
        raise SandboxError(f"cannot admit a sandbox: {error}") from error
    except BaseException:
        await end(booted)
        raise
    return booted


async def _admit(booted: Launcher, start: Start) -> None:
    """Return when the launcher is ready, and where and as limited as its command is to be."""
    pid = await booted.begun()
    # Entering a control group may wait for the kernel (RCU) for 10 ms and more: the launcher takes
    # longer to start.
    ready, admitted = await asyncio.gather(
        booted.ready(), asyncio.to_thread(start.admit, pid), return_exceptions=True
    )
    for outcome in (ready, admitted):  # first why it did not start, if that is so
        if isinstance(outcome, BaseException):
            raise outcome
    if ready != pid:
        raise SandboxError(
            f"cannot admit a sandbox: {pid} was to be its first process, not {ready}"
        )
    start.limit(pid)


async def end(booted: Launcher) -> None:
    """Discard it; cancelling the caller does not stop this."""
    booted.kill()  # now, whatever becomes of the rest
    await asyncio.shield(asyncio.to_thread(booted.discard))


async def _readable(*handles: int) -> None:
    """Return when one of them can be read."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for handle in handles:
        loop.add_reader(handle, event.set)
    try:
        await event.wait()
    finally:
        for handle in handles:
            loop.remove_reader(handle)

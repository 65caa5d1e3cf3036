"""Spawn namespaces with a launcher in them, which waits for the one command that they are for.

A launcher belongs to no event loop until its command runs (``command``), so it can be booted before
it is needed (``warm_pool``). Two conditions of the spawn:

* It is a vfork, so no ``preexec_fn``: the driver is a large process, and a fork copies its page
  tables.
* It happens in the event loop's thread, not in a worker thread: bubblewrap's ``--die-with-parent``
  is PR_SET_PDEATHSIG, and that fires when the *thread* that spawned bubblewrap ends.

That signal alone does not end every sandbox with its driver: ``unshare --kill-child`` requests it
between unshare and its child only, without isolation nothing requests it, and the kernel clears it
when a process changes its credentials. So the launcher also watches the status socket, which the
kernel closes whatever kills the driver.
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

from runners.sandboxes.contract import SandboxError
from runners.sandboxes.local.confinement import give_way
from runners.system.processes import SANDBOX_TAG

START_S = 30.0
"""From spawn to a launcher that is ready and limited; takes 20 ms on an idle machine."""
END_S = 10.0
"""From SIGKILL to the last process gone."""
CLOSED = -1
"""In place of a descriptor that is closed."""
_CREDENTIALS = struct.Struct("3i")
"""``struct ucred``: pid, uid, gid."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The command line, environment and limits of a launcher to be spawned."""

    argv: Callable[[list[str], int], list[str]]
    """(the launcher's arguments, the descriptor to report its pid on) → the host's command line."""
    env: dict[str, str]
    """Of the launcher and the programs that start it; the sandboxes' tag is in it."""
    cwd: Path | None
    namespaced: bool
    """The launcher is pid 1 of a pid namespace."""
    listens: bool
    """It opens a socket for the gateway."""
    move_to_group: Callable[[int], None]
    """Called in a thread with the launcher's pid on the host while it starts; raises OSError."""
    set_limits: Callable[[int], None]
    """Called with the pid when the launcher is ready, before its command; raises OSError."""
    inherit: tuple[int, ...] = ()
    """More descriptors for the host's command line."""


class Launcher:
    """A launcher that waits for its command; its owner runs one in it, or discards it.

    Mutated by ``boot`` until it is ready, then by the one ``run_command``.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        """Spawn it; raises OSError."""
        self.namespaced = plan.namespaced
        self.tag = plan.env[SANDBOX_TAG]
        self.pid = 0
        """Of the launcher itself on the host, once it is ready."""
        self.init_pidfd = CLOSED
        """Of the launcher itself, once it is ready."""
        self.listener = CLOSED
        """The sandbox's listening socket, which the gateway is to serve."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            # SOCK_SEQPACKET keeps messages apart, and reads as closed when the other end is.
            # With SO_PASSCRED the kernel adds the sender's pid, translated into our pid namespace:
            # inside its own, the launcher only knows itself as 1.
            self.status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(status)
            ours.enter_context(self.status)
            self.status.setblocking(False)
            self.status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            # The command goes through a file in memory: arguments and environment may exceed what
            # a pipe or a message holds, and they contain secrets that no command line may show.
            self.command_fd = os.memfd_create("command")
            ours.callback(os.close, self.command_fd)
            pipes = [os.pipe() for _ in range(3)]
            (stdin, self.stdin), (self.stdout, stdout), (self.stderr, stderr) = pipes
            for fd in (stdin, stdout, stderr):
                theirs.callback(os.close, fd)
            for fd in (self.stdin, self.stdout, self.stderr):
                ours.callback(os.close, fd)
                os.set_blocking(fd, False)
            self.pid_fd, pid_fd = os.pipe()
            theirs.callback(os.close, pid_fd)
            ours.callback(os.close, self.pid_fd)
            os.set_blocking(self.pid_fd, False)
            handles = [status.fileno(), self.command_fd]
            reports = [pid_fd] if plan.namespaced else []
            self.popen = subprocess.Popen(
                plan.argv(
                    [*map(str, handles), str(int(plan.listens)), str(int(plan.namespaced))], pid_fd
                ),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=plan.env,
                cwd=plan.cwd,
                pass_fds=[*handles, *reports, *plan.inherit],
                start_new_session=True,  # a process group to kill; ctrl-C is the driver's to handle
            )
            ours.callback(self.popen.kill)
            give_way(self.popen.pid)
            self.outer_pidfd = os.pidfd_open(self.popen.pid)
            """Of the process that we spawned: bubblewrap, unshare or the launcher."""
            ours.pop_all()

    def send_command(self, argv: list[str], env: dict[str, str]) -> None:
        """Let it start its command; raises OSError if it is gone, ValueError for a zero byte."""
        words = [str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
        if any("\0" in word for word in words):
            raise ValueError("a zero byte in a command's arguments or environment")
        with os.fdopen(self.command_fd, "wb") as file:
            self.command_fd = CLOSED
            file.write("\0".join(words).encode("utf-8", "surrogateescape"))
        self.status.send(b"g")

    def kill(self) -> None:
        """Kill the launcher, and with its pid namespace everything in it.

        Its parent, bubblewrap or unshare, reaps it and exits; killing that one first would leave
        the launcher to the host's init. Without namespaces the launcher must live to kill what its
        command started, which it does when the status socket closes.
        """
        if self.popen.returncode is not None:
            return  # it ended, and its pid may be another's by now
        with contextlib.suppress(OSError):
            if not self.namespaced and self.command_fd == CLOSED:
                self.status.shutdown(socket.SHUT_WR)
            elif self.init_pidfd != CLOSED:
                signal.pidfd_send_signal(self.init_pidfd, signal.SIGKILL)
            else:
                self.popen.kill()

    def kill_group(self) -> None:
        """Kill the process that we spawned and its process group, if it has not been reaped."""
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def alive(self) -> bool:
        """Return whether it still waits."""
        return self.popen.poll() is None

    def discard(self) -> None:
        """End one that ran nothing; blocks for some milliseconds."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_S)
        self.kill_group()
        self.close()

    def close_stdin(self) -> None:
        """Let the command see the end of its input."""
        self.stdin = _close(self.stdin)

    def close_listener(self) -> None:
        """Close our copy of the sandbox's socket: it then ends when the gateway closes its copy."""
        self.listener = _close(self.listener)

    def close(self) -> None:
        """Close every descriptor that is open."""
        self.status.close()
        self.close_stdin()
        self.close_listener()
        self.init_pidfd, self.pid_fd = _close(self.init_pidfd), _close(self.pid_fd)
        self.command_fd, self.outer_pidfd = _close(self.command_fd), _close(self.outer_pidfd)
        self.stdout, self.stderr = _close(self.stdout), _close(self.stderr)

    async def read_pid(self) -> int:
        """Return the launcher's pid while its surroundings are still set up; raises SandboxError.

        It comes as bubblewrap's ``--info-fd`` writes it: a JSON object with ``child-pid``.
        """
        if not self.namespaced:
            return self.popen.pid
        text = b""
        while not text.endswith(b"}\n"):
            await _wait_readable(self.pid_fd, self.outer_pidfd)
            try:
                part = os.read(self.pid_fd, 4096)
            except BlockingIOError:  # it ended, and a process that it left behind holds the pipe
                part = b""
            if not part:
                raise self._start_error()
            text += part
        self.pid_fd = _close(self.pid_fd)
        try:
            return int(json.loads(text)["child-pid"])
        except (ValueError, KeyError) as error:
            raise SandboxError(f"the sandbox reported no process id but {text!r}") from error

    async def wait_ready(self) -> int:
        """Return the launcher's pid when it has announced itself; raises SandboxError."""
        await _wait_readable(self.status.fileno(), self.outer_pidfd)
        try:
            pid = self._read_announcement()
        except OSError as error:
            raise SandboxError(f"cannot start a sandbox: {error}") from error
        if pid is None:
            raise self._start_error()
        return pid

    def _start_error(self) -> SandboxError:
        """Return the error for a launcher that ended before it was ready."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_S)
        printed = os.read(self.stderr, 1 << 16)[-500:].decode(errors="replace").strip()
        return SandboxError(f"the sandbox did not start; it printed: {printed or 'nothing'}")

    def _read_announcement(self) -> int | None:
        """Return the pid that the kernel attached to ``ready``, and keep the socket sent with it.

        The listening socket comes by SCM_RIGHTS: it stays in the sandbox's network namespace
        whoever holds it, so the gateway can serve it although no network leads inside or outside.
        """
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
        self.pid, self.init_pidfd = pid, os.pidfd_open(pid)
        return pid


def _close(fd: int) -> int:
    """Close a descriptor if it is open; return ``CLOSED``."""
    if fd != CLOSED:
        os.close(fd)
    return CLOSED


async def boot(plan: LaunchPlan) -> Launcher:
    """Return a launcher that waits for its command; raises SandboxError."""
    try:
        launcher = Launcher(plan)
    except OSError as error:
        raise SandboxError(f"cannot start a sandbox: {error}") from error
    try:
        async with asyncio.timeout(START_S):
            await _wait_until_limited(launcher, plan)
    except TimeoutError:
        await end(launcher)
        raise SandboxError(f"the sandbox did not start within {START_S:.0f} s") from None
    except OSError as error:
        await end(launcher)
        raise SandboxError(f"cannot set the limits of a sandbox: {error}") from error
    except BaseException:
        await end(launcher)
        raise
    return launcher


async def _wait_until_limited(launcher: Launcher, plan: LaunchPlan) -> None:
    """Return when the launcher is ready, in its control group, and limited."""
    pid = await launcher.read_pid()
    give_way(pid)  # again: it may have been forked before
    # Moving a process to another control group may wait for the kernel (RCU) for 10 ms and more.
    # The launcher takes longer than that to start, so it is moved meanwhile and costs no time.
    ready, moved = await asyncio.gather(
        launcher.wait_ready(), asyncio.to_thread(plan.move_to_group, pid), return_exceptions=True
    )
    for outcome in (ready, moved):  # if it did not start, moving it failed for that reason
        if isinstance(outcome, BaseException):
            raise outcome
    if ready != pid:
        raise SandboxError(
            f"cannot set the limits of a sandbox: its first process is {ready}, not {pid}"
        )
    # Only now: until the launcher is ready, they would bind the set-up too, which is this process.
    plan.set_limits(pid)


async def end(launcher: Launcher) -> None:
    """Discard a launcher; cancelling the caller does not stop this."""
    launcher.kill()  # now, whatever becomes of the rest
    await asyncio.shield(asyncio.to_thread(launcher.discard))


async def _wait_readable(*handles: int) -> None:
    """Return when one of them can be read; a pidfd can be when its process has ended."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for handle in handles:
        loop.add_reader(handle, event.set)
    try:
        await event.wait()
    finally:
        for handle in handles:
            loop.remove_reader(handle)

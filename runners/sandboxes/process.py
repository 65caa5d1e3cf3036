"""One command in one fresh sandbox, from spawn to the last process gone.

Invariant: when ``execute`` returns or raises, also by cancellation, nothing that it started runs
(without namespaces: nothing that still carries its mark). The driver is a large process, so the
spawn is ``vfork`` (no ``preexec_fn``), and it happens in the event loop's thread: a sandbox dies
with the thread that spawned it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runners.marks import SANDBOX, kill_marked
from runners.sandboxes.contract import CommandResult, SandboxError

START_S = 30.0
"""From spawn to the launcher's ``ready``; takes 20 ms on an idle machine."""
END_S = 10.0
"""From SIGKILL to the last process gone."""
TIMED_OUT = 124
_CREDENTIALS = struct.Struct("3i")
_reaping: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class Command:
    """What ``execute`` runs."""

    argv: Callable[[int, int], list[str]]
    """The host's command line, given the numbers of the status and control descriptors."""
    env: dict[str, str]
    cwd: Path | None
    stdin: bytes
    deadline_s: float
    """From the moment the command may run."""
    output_limit: int
    """Bytes kept of each output."""
    namespaced: bool
    """The launcher is pid 1 of a pid namespace; otherwise the mark in ``env`` finds the rest."""
    control: socket.socket | None = None
    """Connection to the gateway, handed into the sandbox and closed here."""
    admit: Callable[[int], None] = lambda pid: None
    """Called with the launcher's pid on the host before it starts the command."""
    inherit: tuple[int, ...] = ()
    """More descriptors for the host's command line."""


async def execute(command: Command) -> CommandResult:
    """Run a command; raises SandboxError if it was not the command that failed."""
    run = _Run(command)
    try:
        run.spawn()
        result = await run.follow()
    except OSError as error:
        raise SandboxError(f"cannot start a sandbox: {error}") from error
    finally:
        await _shielded(run.end())
    return result()


async def _shielded(work: Coroutine[None, None, None]) -> None:
    """Await ``work``; cancelling the caller does not cancel it."""
    task = asyncio.ensure_future(work)
    _reaping.add(task)
    task.add_done_callback(_reaping.discard)
    await asyncio.shield(task)


@dataclass(slots=True)
class Output:
    """The beginning and the end of a stream; mutated by the run that reads it."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    left_out: int = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        room = max(0, self.limit - self.limit // 2 - len(self.head))
        self.head += data[:room]
        self.tail += data[room:]
        surplus = len(self.tail) - self.limit // 2
        if surplus > 0:
            del self.tail[:surplus]
            self.left_out += surplus

    def text(self) -> bytes:
        """Return what was kept, with a note where the middle is missing."""
        note = b"\n[%d bytes left out]\n" % self.left_out if self.left_out else b""
        return bytes(self.head) + note + bytes(self.tail)


class _Run:
    """The live state of one ``execute``."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._popen: subprocess.Popen[bytes] | None = None
        self._exited = asyncio.Event()
        self._ready = asyncio.Event()
        self._exit_code: int | None = None
        self._init: int | None = None
        self._outer = -1
        self._fds: dict[int, Callable[[], None]] = {}
        self._status: socket.socket | None = None
        self._outputs = (Output(command.output_limit), Output(command.output_limit))
        self._unsent = memoryview(command.stdin)

    def spawn(self) -> None:
        """Start the sandbox's processes; everything they inherit is closed here afterwards."""
        command = self._command
        with contextlib.ExitStack() as theirs:
            if command.control is not None:
                theirs.enter_context(command.control)
            self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(status)
            self._status.setblocking(False)
            self._status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._watch(self._status.fileno(), self._on_status)
            stdin = theirs.enter_context(_closing(self._pipe(1, self._on_stdin)))
            stdout = theirs.enter_context(_closing(self._pipe(0, self._on_output, 0)))
            stderr = theirs.enter_context(_closing(self._pipe(0, self._on_output, 1)))
            inherited = [status.fileno(), *command.inherit]
            control = -1
            if command.control is not None:
                control = command.control.fileno()
                inherited.append(control)
            argv = command.argv(status.fileno(), control)
            self._popen = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=command.env,
                cwd=command.cwd,
                pass_fds=inherited,
                start_new_session=True,
            )
            self._outer = os.pidfd_open(self._popen.pid)
            self._watch(self._outer, self._on_exit)

    async def follow(self) -> Callable[[], CommandResult]:
        """Wait for the end or the deadline; the result is complete after ``end``."""
        if not await self._within(START_S, self._ready):
            raise SandboxError(f"the sandbox did not start within {START_S:.0f} s")
        started = time.monotonic()
        timed_out = not await self._within(self._command.deadline_s, self._exited)
        duration = time.monotonic() - started
        return lambda: self._result(duration, timed_out)

    async def _within(self, seconds: float, event: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def _result(self, duration: float, timed_out: bool) -> CommandResult:
        stdout, stderr = (output.text() for output in self._outputs)
        if timed_out:
            return CommandResult(TIMED_OUT, stdout, stderr, duration, timed_out=True)
        if self._exit_code is None:
            said = stderr[-500:].decode(errors="replace").strip() or "nothing"
            when = "did not start" if self._init is None else "was killed from outside"
            raise SandboxError(f"the sandbox {when}; it said: {said}")
        return CommandResult(self._exit_code, stdout, stderr, duration)

    async def end(self) -> None:
        """Kill what is left, read what was written, close everything."""
        popen = self._popen
        if popen is not None:
            self._kill(popen)
            if not await self._within(END_S, self._exited):
                popen.kill()
                await self._within(END_S, self._exited)
            popen.poll()
            if not self._command.namespaced:
                mark = self._command.env[SANDBOX]
                with contextlib.suppress(TimeoutError):
                    await asyncio.to_thread(kill_marked, SANDBOX, mark.__eq__)
        for fd, callback in list(self._fds.items()):
            if fd != self._outer and fd in self._fds:
                callback()  # what was written in the last moment
        for fd in list(self._fds):
            self._close(fd)
        if self._init is not None:
            os.close(self._init)

    def _kill(self, popen: subprocess.Popen[bytes]) -> None:
        """Kill the launcher: with its pid namespace goes everything; its parent reaps and exits."""
        with contextlib.suppress(ProcessLookupError):
            if self._init is not None:
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            elif not self._exited.is_set():
                popen.kill()
            if not self._command.namespaced:
                os.killpg(popen.pid, signal.SIGKILL)

    # --- descriptors ---------------------------------------------------------------------------

    def _watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        self._fds[fd] = callback
        (self._loop.add_writer if write else self._loop.add_reader)(fd, callback)

    def _close(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        del self._fds[fd]
        if self._status is not None and fd == self._status.fileno():
            self._status.close()
        else:
            os.close(fd)

    def _pipe(self, ours: int, callback: Callable[..., None], *args: int) -> int:
        """Open a pipe, watch our end (0: read, 1: write) and return the other end."""
        ends = os.pipe()
        fd = ends[ours]
        os.set_blocking(fd, False)
        self._watch(fd, lambda: callback(fd, *args), write=ours == 1)
        return ends[1 - ours]

    def _on_exit(self) -> None:
        self._close(self._outer)
        self._exited.set()
        self._ready.set()

    def _on_status(self) -> None:
        assert self._status is not None
        try:
            space = socket.CMSG_SPACE(_CREDENTIALS.size)
            message, ancillary, _, _ = self._status.recvmsg(64, space)
        except OSError:
            return
        if message == b"ready" and self._init is None:
            pid = _CREDENTIALS.unpack(ancillary[0][2])[0]
            try:
                self._init = os.pidfd_open(pid)
                self._command.admit(pid)
                self._status.send(b"g")
            except OSError:  # it is gone already; the exit is on its way
                return
            self._ready.set()
        elif message:
            with contextlib.suppress(ValueError):
                self._exit_code = os.waitstatus_to_exitcode(int(message))
        else:
            self._close(self._status.fileno())

    def _on_stdin(self, fd: int) -> None:
        try:
            self._unsent = self._unsent[os.write(fd, self._unsent[:65536]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._close(fd)

    def _on_output(self, fd: int, which: int) -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if data:
            self._outputs[which].feed(data)
        else:
            self._close(fd)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)

"""One command in one booted sandbox, from its order to the last process gone.

Invariant: when ``execute`` returns or raises, also by cancellation, nothing that it started runs
(without namespaces: nothing that still carries its mark).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

from runners.processes.process_tags import SANDBOX_TAG, kill_tagged
from runners.sandboxes.contract import CommandResult, SandboxError
from runners.sandboxes.local.boot import END_S, Launcher

TIMED_OUT = 124
_reaping: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class Command:
    """What ``execute`` runs."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes
    deadline_s: float
    """From the moment the command may run."""
    output_limit: int
    """Bytes kept of each output."""


async def execute(booted: Launcher, command: Command) -> CommandResult:
    """Run a command, and end what was booted for it; raises SandboxError if it was not the command
    that failed.
    """
    run = _Run(booted, command)
    try:
        run.begin()
        result = await run.follow()
    except OSError as error:
        raise SandboxError(f"cannot start a command: {error}") from error
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

    def __init__(self, booted: Launcher, command: Command) -> None:
        self._booted = booted
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._exit_code: int | None = None
        self._fds: dict[int, Callable[[], None]] = {}
        self._outputs = (Output(command.output_limit), Output(command.output_limit))
        self._unsent = memoryview(command.stdin)

    def begin(self) -> None:
        """Let the command start; raises OSError."""
        booted = self._booted
        booted.close_listener()
        self._watch(booted.status.fileno(), self._on_status)
        self._watch(booted.stdin, self._on_stdin, write=True)
        for number, fd in enumerate((booted.stdout, booted.stderr)):
            self._watch(fd, partial(self._on_output, fd, number))
        self._watch(booted.outer, self._on_exit)
        booted.give(self._command.argv, {**self._command.env, SANDBOX_TAG: booted.mark})

    async def follow(self) -> Callable[[], CommandResult]:
        """Wait for the end or the deadline; the result is complete after ``end``."""
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
            raise SandboxError(f"the sandbox was killed from outside; it said: {said}")
        return CommandResult(self._exit_code, stdout, stderr, duration)

    async def end(self) -> None:
        """Kill what is left, read what was written, close everything."""
        booted = self._booted
        booted.kill()
        if not await self._within(END_S, self._exited):
            booted.popen.kill()
            await self._within(END_S, self._exited)
        booted.popen.poll()
        if not booted.namespaced:
            with contextlib.suppress(TimeoutError):
                await asyncio.to_thread(kill_tagged, SANDBOX_TAG, booted.mark.__eq__)
        for fd, callback in list(self._fds.items()):
            if fd != booted.outer and fd in self._fds:
                callback()  # what was written in the last moment
        for fd in list(self._fds):
            self._close(fd)
        booted.close()

    # --- descriptors ---------------------------------------------------------------------------

    def _watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        self._fds[fd] = callback
        (self._loop.add_writer if write else self._loop.add_reader)(fd, callback)

    def _close(self, fd: int) -> None:
        """Stop watching; it is closed when nothing runs any more, but the command's input now."""
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        del self._fds[fd]
        if fd == self._booted.stdin:
            self._booted.close_stdin()

    def _on_exit(self) -> None:
        self._close(self._booted.outer)
        self._exited.set()

    def _on_status(self) -> None:
        try:
            message = self._booted.status.recv(64)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            with contextlib.suppress(ValueError):
                self._exit_code = os.waitstatus_to_exitcode(int(message))
        else:
            self._close(self._booted.status.fileno())

    def _on_stdin(self) -> None:
        fd = self._booted.stdin
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

"""Run the one command of a launcher: feed it, read it, and end everything that it started.

Invariant: when ``run_command`` returns or raises, also by cancellation, nothing that it started is
running. Without namespaces that is the launcher's work (``kill_descendants``); if the command has
killed the launcher, what still carries its tag is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

from runners.sandboxes.contract import (
    TIMED_OUT,
    CommandResult,
    KilledError,
    SandboxError,
    join_output,
)
from runners.sandboxes.local.launch import END_S, Launcher
from runners.system.processes import (
    SANDBOX_TAG,
    add_cpu_time,
    kill_tagged,
    read_cpu_time,
    read_tree_times,
)

PIPE_BYTES = 65536
"""Read or written at once: a pipe's capacity on Linux, so one read empties a pipe."""
UNSHARES_OWN = b"unshare: sigprocmask unblock failed: Invalid argument\n"
"""Last line of util-linux's unshare, on the command's stderr, if the launcher was killed."""
LEAST_LOOK_S, LONGEST_LOOK_S = 0.1, 2.0
"""Between two looks at a command: a hundredth of its deadline, within these."""
_finishing: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class LocalCommand:
    """A command for a launcher."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes
    deadline_s: float
    """From the moment the command may run."""
    output_limit: int
    """Bytes kept of each output."""


async def run_command(launcher: Launcher, command: LocalCommand) -> CommandResult:
    """Run a command and end the launcher that was booted for it.

    Raises SandboxError if the sandbox failed and not the command, KilledError if it was ended.
    """
    run = _CommandRun(launcher, command)
    try:
        run.start()
        duration, timed_out = await run.wait()
    except OSError as error:
        raise SandboxError(f"cannot start a command: {error}") from error
    finally:
        await _finish_shielded(run.finish())
    return run.result(duration, timed_out)


async def _finish_shielded(work: Coroutine[None, None, None]) -> None:
    """Await ``work``; cancelling the caller does not cancel it.

    A cancelled caller goes on at once, so the set holds the task: the event loop keeps only a weak
    reference to a task.
    """
    task = asyncio.ensure_future(work)
    _finishing.add(task)
    task.add_done_callback(_finishing.discard)
    await asyncio.shield(task)


@dataclass(slots=True)
class TruncatedOutput:
    """The beginning and the end of a stream; mutated by the run that reads it."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    left_out: int = 0

    def feed(self, data: bytes) -> None:
        """Add the next bytes."""
        free = max(0, self.limit - self.limit // 2 - len(self.head))
        self.head += data[:free]
        self.tail += data[free:]
        surplus = len(self.tail) - self.limit // 2
        if surplus > 0:
            del self.tail[:surplus]
            self.left_out += surplus

    def text(self) -> bytes:
        """Return the bytes kept, with a note where the middle is missing."""
        return join_output(bytes(self.head), bytes(self.tail), self.left_out)


class _CommandRun:
    """The state of one ``run_command``, on the event loop's callbacks.

    Callbacks instead of asyncio's subprocess: the process existed before this event loop had
    anything to do with it, and its pipes stay with us until everything inside has ended.
    """

    def __init__(self, launcher: Launcher, command: LocalCommand) -> None:
        self._launcher = launcher
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._exit_code: int | None = None
        self._cpu_s = 0.0
        self._looks = self._ready_looks = 0
        """Looks at the command, and those at which it was ready for a processor."""
        self._look_s = min(max(LEAST_LOOK_S, command.deadline_s / 100), LONGEST_LOOK_S)
        self._timer = self._loop.call_later(self._look_s, self._look)
        self._fds: dict[int, Callable[[], None]] = {}
        self._outputs = (
            TruncatedOutput(command.output_limit),
            TruncatedOutput(command.output_limit),
        )
        self._unsent = memoryview(command.stdin)

    def start(self) -> None:
        """Let the command start; raises OSError."""
        launcher = self._launcher
        launcher.close_listener()
        self._watch(launcher.status.fileno(), self._on_status)
        self._watch(launcher.stdin, self._on_stdin, write=True)
        for number, fd in enumerate((launcher.stdout, launcher.stderr)):
            self._watch(fd, partial(self._on_output, fd, number))
        self._watch(launcher.outer_pidfd, self._on_exit)
        launcher.send_command(self._command.argv, {**self._command.env, SANDBOX_TAG: launcher.tag})

    def _look(self) -> None:
        """Note whether the command is ready for a processor, now and from time to time."""
        self._looks += 1
        self._ready_looks += read_tree_times(self._launcher.popen.pid).is_ready
        self._timer = self._loop.call_later(self._look_s, self._look)

    async def wait(self) -> tuple[float, bool]:
        """Wait for the end or the deadline; return its seconds, and whether it timed out."""
        started = time.monotonic()
        exited = await self._wait_exit(self._command.deadline_s)
        return time.monotonic() - started, not exited

    async def _wait_exit(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        except TimeoutError:
            return False
        return True

    def result(self, duration_s: float, timed_out: bool) -> CommandResult:
        """Return the result, complete after ``finish``; raises KilledError."""
        stdout, stderr = (output.text() for output in self._outputs)
        stderr = stderr.removesuffix(UNSHARES_OWN)
        if timed_out:
            ready_s = duration_s * self._ready_looks / max(1, self._looks)
            waited_s = max(0.0, ready_s - self._cpu_s)
            return CommandResult(TIMED_OUT, stdout, stderr, duration_s, True, self._cpu_s, waited_s)
        if self._exit_code is None:
            printed = stderr[-500:].decode(errors="replace").strip() or "nothing"
            raise KilledError(f"the sandbox was killed from outside; it printed: {printed}")
        return CommandResult(self._exit_code, stdout, stderr, duration_s)

    async def finish(self) -> None:
        """Kill what is left, read what was written, close everything."""
        launcher = self._launcher
        pid = launcher.popen.pid
        self._timer.cancel()
        used = 0.0 if self._exited.is_set() else read_tree_times(pid).cpu_s
        self._cpu_s = used
        launcher.kill()
        if not await self._wait_exit(END_S):
            launcher.kill_group()
            await self._wait_exit(END_S)
        launcher.kill_group()
        ended = read_cpu_time(pid)
        add_cpu_time(used or None if ended is None else max(used, ended))
        launcher.popen.poll()  # reaps it, so that no zombie is left
        if not launcher.namespaced:
            with contextlib.suppress(TimeoutError):
                await asyncio.to_thread(kill_tagged, SANDBOX_TAG, launcher.tag.__eq__)
        # Only now can nobody write any more: a last read of each pipe gets the rest.
        for fd, callback in list(self._fds.items()):
            if fd != launcher.outer_pidfd and fd in self._fds:
                callback()
        for fd in list(self._fds):
            self._unwatch(fd)
        launcher.close()

    def _watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        self._fds[fd] = callback
        (self._loop.add_writer if write else self._loop.add_reader)(fd, callback)

    def _unwatch(self, fd: int) -> None:
        """Stop watching. Only the command's input is closed here, because the command may wait for
        the end of it; the launcher closes the others when nothing runs any more.
        """
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        del self._fds[fd]
        if fd == self._launcher.stdin:
            self._launcher.close_stdin()

    def _on_exit(self) -> None:
        self._unwatch(self._launcher.outer_pidfd)
        self._exited.set()

    def _on_status(self) -> None:
        """Read the command's wait status, the launcher's last message."""
        try:
            message = self._launcher.status.recv(64)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            with contextlib.suppress(ValueError):
                self._exit_code = os.waitstatus_to_exitcode(int(message))
        else:
            self._unwatch(self._launcher.status.fileno())

    def _on_stdin(self) -> None:
        fd = self._launcher.stdin
        try:
            self._unsent = self._unsent[os.write(fd, self._unsent[:PIPE_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command does not read its input: no error of the sandbox
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._unwatch(fd)

    def _on_output(self, fd: int, number: int) -> None:
        try:
            data = os.read(fd, PIPE_BYTES)
        except BlockingIOError:
            return
        if data:
            self._outputs[number].feed(data)
        else:
            self._unwatch(fd)

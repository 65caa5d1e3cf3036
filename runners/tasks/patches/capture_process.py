"""Capture patches in processes of their own, each forked from one that is kept ready.

What is in a workspace decides how long reading it takes, how much memory, and whether it ends at
all. So a process reads it that has limits of its own and shares neither interpreter nor memory with
the driver. A fresh interpreter costs 50 ms of CPU time; a fork of one that has all modules loaded
costs 2.

The server ends when the driver does: its socket is then closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

import psutil

from runners.system.processes import child_environment

PROGRAM = f"{__package__}.patch"
"""Module that the server runs, by its name: it imports what imports this one."""
REPLY_LIMIT = 64 << 20
"""Bytes; a reply is a patch within its limits and a list of paths."""
CPU_S = 30
"""CPU seconds of a capture with its calls of git. Repositories of the size of Django take 1."""
SLOW_SHARE = 0.25
"""Of ``CPU_S``: a capture that has used more when it is late is late for what is in the workspace,
and not because the machine has no time for it.
"""
LOOK_S = 1.0
"""Between two looks at a capture that goes on."""
STUCK_LOOKS = 10
"""In a row at which git sleeps and has used no CPU time since: it waits for what never comes. One
that waits for a disk or for a processor does not sleep.
"""
MEMORY = 4 << 30
"""Bytes of address space; git maps the packs of a repository."""
FILE_BYTES = 1 << 30
_at_once: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
AT_ONCE = max(2, os.cpu_count() or 2)
"""Captures at once; further ones wait, and their deadline begins afterwards."""


class EndedError(Exception):
    """A capturing process ended without a reply; the text says how."""


class CaptureServer:
    """The driver's end of the process that forks; started at its first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def send(self, request: bytes, deadline_s: float) -> int:
        """Have a request answered; return the pipe of its reply. Raises OSError."""
        content = os.memfd_create("capture")
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        limits = f"{deadline_s} {CPU_S}".encode()
        try:
            os.write(content, request)
            os.set_blocking(writer, True)
            with self._lock:
                try:
                    socket.send_fds(self._ready(), [limits], [content, writer])
                except OSError:  # it was killed
                    self._stop()
                    socket.send_fds(self._ready(), [limits], [content, writer])
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(content)
            os.close(writer)
        return reader

    def alive(self) -> bool:
        """Return whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def _ready(self) -> socket.socket:
        if self._socket is not None and self.alive():
            return self._socket
        self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: no module of the current directory, which may be anybody's.
            command = [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno())]
            wanted = {"PATH", "PYTHONPATH"}
            env = {name: text for name, text in child_environment().items() if name in wanted}
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=env,
                start_new_session=True,
            )
        self._socket = ours
        return ours

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


_server = CaptureServer()


async def call(request: bytes, deadline_s: float) -> bytes:
    """Return the reply to a request; raises OSError, and EndedError if there is none."""
    loop = asyncio.get_running_loop()
    async with _at_once.setdefault(loop, asyncio.Semaphore(AT_ONCE)):
        reader = await asyncio.to_thread(_server.send, request, deadline_s)
        try:
            reply = await _read(reader)
        finally:
            os.close(reader)
    killed = reply.endswith(KILLED)
    reply = reply.removesuffix(KILLED)
    if reply.endswith(LATE):
        raise OSError(f"it took longer than {deadline_s:g} s")
    if reply.endswith(STUCK):
        raise EndedError("git waiting for something in it")
    if reply.endswith(SPENT):
        raise EndedError("more CPU time than it may use")
    if not reply.endswith(END):
        if killed or not _server.alive():
            raise OSError("the capturing process was killed: is memory left?")
        raise EndedError("more memory or time than it may use")
    return reply.removesuffix(END)


async def _read(reader: int) -> bytes:
    """Read a pipe to its end, or to the limit."""
    loop = asyncio.get_running_loop()
    parts, size, readable = [], 0, asyncio.Event()
    loop.add_reader(reader, readable.set)
    try:
        while size < REPLY_LIMIT:
            await readable.wait()
            readable.clear()
            with contextlib.suppress(BlockingIOError):
                part = os.read(reader, 1 << 20)
                if not part:
                    break
                parts.append(part)
                size += len(part)
    finally:
        loop.remove_reader(reader)
    return b"".join(parts)


END, LATE = b"\nreply-ends", b"\nreply-late"
SPENT, STUCK = b"\nreply-spent", b"\nreply-stuck"
"""The last bytes of a reply: whole, or cut off for the machine's fault or the workspace's."""
KILLED = b"\nreply-killed"
"""Added by the server to the reply of a process that somebody else has ended."""


# --- the server's side ---------------------------------------------------------------------------


def serve(answer: Callable[[bytes], bytes], handle: int) -> None:
    """Fork a process for each request on the socket ``handle``, until the driver ends."""
    writers: dict[int, int] = {}
    """Process → the pipe of its reply."""

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                _note_end(writers.pop(pid), status)

    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is the driver's to handle
    with socket.socket(fileno=handle) as driver:
        while True:
            message, handles, *_ = socket.recv_fds(driver, 64, 2)
            if not message:
                return
            content, writer = handles
            # A process that ends before its pipe is noted would not be found.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            pid = os.fork()
            if pid == 0:
                driver.close()
                for other in writers.values():
                    os.close(other)
                deadline_s, cpu_s = message.split()
                _answer(answer, float(deadline_s), int(cpu_s), content, writer)
            writers[pid] = writer
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os.close(content)


def _note_end(writer: int, status: int) -> None:
    """Close the pipe of a process that has ended; say first if somebody else has ended it."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGXCPU:
        os.set_blocking(writer, False)
        with contextlib.suppress(OSError):  # full, or nobody waits for it any more
            os.write(writer, KILLED)
    os.close(writer)


def _answer(
    answer: Callable[[bytes], bytes], deadline_s: float, cpu_s: int, content: int, writer: int
) -> None:
    """Answer one request in this process, and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.setpgid(0, 0)
    os.nice(5)  # the driver and its agents come first

    watch = _Watch(writer, deadline_s, cpu_s)
    signal.signal(signal.SIGALRM, watch.look)
    signal.setitimer(signal.ITIMER_REAL, min(deadline_s, LOOK_S), LOOK_S)
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, hard if kind == resource.RLIMIT_CPU else value))
    try:
        reply = answer(os.pread(content, os.fstat(content).st_size, 0))
    except BaseException as error:
        reply = json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
    signal.setitimer(signal.ITIMER_REAL, 0)  # from here on it is the driver that takes time
    _write(writer, reply + END)
    os._exit(0)


def _write(writer: int, reply: bytes) -> None:
    left = memoryview(reply)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        while left:
            left = left[os.write(writer, left) :]


class _Watch:
    """Looks at a capture from within its process, and ends one that is too slow; mutated by
    ``look``, the handler of its timer.
    """

    def __init__(self, writer: int, deadline_s: float, cpu_s: int) -> None:
        self._writer, self._cpu_s = writer, cpu_s
        self._late = time.monotonic() + deadline_s
        self._of_git = 0.0
        self._asleep = 0

    def look(self, *_: object) -> None:
        """End the process and git if the time is up, with the reason as reply."""
        of_git, asleep = _look_at_children()
        self._asleep = self._asleep + 1 if asleep and of_git == self._of_git else 0
        self._of_git = of_git
        used = sum(os.times()[:4]) + of_git
        late = time.monotonic() >= self._late
        if used > (SLOW_SHARE if late else 1) * self._cpu_s:
            self._end(SPENT)
        elif self._asleep >= STUCK_LOOKS:
            self._end(STUCK)
        elif late:
            self._end(LATE)

    def _end(self, reason: bytes) -> None:
        _write(self._writer, reason)
        os.killpg(0, signal.SIGKILL)  # git too


def _look_at_children() -> tuple[float, bool]:
    """Return the CPU seconds of the children that run, and whether there are any and all sleep."""
    used, states = 0.0, set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended
            used += sum(child.cpu_times()[:2])
            states.add(child.status())
    return used, states == {psutil.STATUS_SLEEPING}

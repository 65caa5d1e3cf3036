"""Relay between the processes under test and the grader; imported by the runners in the sandbox.

The relay imports nothing of the work tree, and only it knows the nonce that marks a result. What a
process under test can do is ask: each message takes the line ``ask``, the relay's answer, a token,
and the line ``TOKEN MESSAGE``. So no secret is in a process while code of the work tree runs there:
it is given out after a test has ended. One line out of order, or by another process than the one
that connected (a fork), breaks a connection for good: none of its messages counts.
"""

# ruff: noqa: PTH123 (pathlib takes 4 ms to import)

from __future__ import annotations

import _socket
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHUNK = 65536
LINE_LIMIT = 1 << 20
CREDENTIALS = 12
"""Bytes of struct ucred: pid, uid, gid."""
PR_SET_DUMPABLE = 4


def set_readable(readable: bool) -> None:
    """Let other processes of this user read our memory and descriptors, or forbid it.

    Without ``_ctypes``, which some images lack, nothing is changed.
    """
    try:
        import _ctypes

        library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        prctl = _ctypes.dlsym(library, "prctl")
        _ctypes.call_function(prctl, (PR_SET_DUMPABLE, int(readable), 0, 0, 0))
    except (ImportError, AttributeError, OSError):
        sys.stderr.write("agentrl: other processes can read the memory of the test runner\n")


def read_request() -> str:
    """Return stdin, which starts with the nonce; where it is a file, the file is emptied."""
    request = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        if os.path.isfile("/proc/self/fd/0"):  # noqa: PTH113
            os.truncate("/proc/self/fd/0", 0)
    except OSError:
        sys.stderr.write("agentrl: the request of the test runner stays on disk\n")
    return request


def print_line(line: str) -> None:
    """Print one line, unbuffered."""
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(1, data) :]


def read_pid(credentials: bytes) -> int:
    """Return the pid of a struct ucred."""
    return int.from_bytes(credentials[:4], sys.byteorder)


def attach_credentials(end: _socket.socket) -> None:
    """Let the kernel add the sender to every message.

    To be called before the other side can send, on the listening socket for its connections: a
    message that comes earlier has no sender, and would break its connection.
    """
    end.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)


class Peer:
    """One process under test, as far as the relay knows it."""

    def __init__(self, end: _socket.socket, pid: int) -> None:
        self.end, self.pid = end, pid
        self.open, self.broken = True, False
        self._token, self._rest = b"", b""

    def receive(self) -> list[str]:
        """Return the messages that have come; closes the connection at its end or first fault."""
        space = _socket.CMSG_SPACE(CREDENTIALS)
        try:
            data, control, _, _ = self.end.recvmsg(CHUNK, space, _socket.MSG_DONTWAIT)
        except OSError:
            data, control = b"", []
        senders = {read_pid(data) for _, _, data in control}
        if not data or senders != {self.pid}:
            self._close(broken=bool(data) or bool(self._rest))
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages: list[str] = []
        for line in lines:
            if not self._token and line == b"ask":
                self._token = os.urandom(16).hex().encode()
                if not self._send(self._token + b"\n"):
                    return messages
                continue
            prefix, _, message = line.partition(b" ")
            if not self._token or prefix != self._token:
                self._close(broken=True)
                return messages
            self._token = b""
            messages.append(message.decode(errors="replace"))
        if len(self._rest) > LINE_LIMIT:
            self._close(broken=True)
        return messages

    def _send(self, data: bytes) -> bool:
        """Send a few bytes at once; a process that does not read its answers is cut off."""
        try:
            self.end.send(data, _socket.MSG_DONTWAIT)
        except OSError:
            self._close(broken=True)
        return self.open

    def _close(self, *, broken: bool) -> None:
        self.open, self.broken = False, self.broken or broken
        self.end.close()

    def alive(self) -> bool:
        """Return whether the process that connected still runs."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
        except OSError:
            return False


def accept(listener: _socket.socket) -> Peer:
    """Return the connection of the next process."""
    descriptor, _ = listener._accept()  # type: ignore[attr-defined]
    end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, descriptor)
    peer = end.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, CREDENTIALS)
    return Peer(end, read_pid(peer))


def serve(
    child: int,
    handle: Callable[[Peer, str], None],
    connections: Iterable[Peer] = (),
    listener: _socket.socket | None = None,
) -> list[Peer]:
    """Hand every message to ``handle`` until the child has ended and nothing is left to read.

    Returns every process that connected, those that said nothing included.
    """
    peers = list(connections)
    pid_fd = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(pid_fd, select.POLLIN)
    by_descriptor = {connection.end.fileno(): connection for connection in peers}
    if listener is not None:
        waiting.register(listener.fileno(), select.POLLIN)
    for descriptor in by_descriptor:
        waiting.register(descriptor, select.POLLIN)
    while True:
        # Not until all is closed: a process that the tests left behind may hold a connection open.
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if listener is not None and listener.fileno() in ready:
            connection = accept(listener)
            peers.append(connection)
            by_descriptor[connection.end.fileno()] = connection
            waiting.register(connection.end.fileno(), select.POLLIN)
        for descriptor in ready & by_descriptor.keys():
            connection = by_descriptor[descriptor]
            for message in connection.receive():
                handle(connection, message)
            if not connection.open:
                waiting.unregister(descriptor)
                del by_descriptor[descriptor]
        if ready == {pid_fd}:
            return peers

"""The control socket: it takes the listening sockets of sandboxes that have no network.

The launcher in a sandbox opens a listening TCP socket in the sandbox's own network namespace and
hands it to the driver. The driver connects here and writes a line, ``{"session_key": KEY,
"launcher": PID}``, with that socket (SCM_RIGHTS); with a PID only the agent program is served, and
not the commands that it starts. The gateway serves it for that session alone, answers ``1``, and
closes it when the session ends. The sandbox never gets a connection to the control socket; and
nothing is taken but one line and one descriptor, checked to be a listening TCP socket.

With several gateway processes, a session's key has the number of the one that serves it. The number
only says where to look. The rest is a secret of 256 bits which that process alone knows: a key with
another number, or a made-up one, opens nothing anywhere.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from runners.gateway.refusal import Refused
from runners.system.processes import AgentProcess, can_tell

logger = logging.getLogger(__name__)

DELIVERY_S = 120.0
"""A connection that sends nothing is dropped after this; a sandbox's boot deadline ends its own
connection earlier.
"""
LINE_BYTES = 4096
BACKLOG = 1024
"""Connections that wait to be accepted: a step's sandboxes may all boot at once."""

PREFIX = "agentrl-gateway-"
"""Of the name of a control socket's directory."""
NAME_BYTES = 107
"""Length of the name that Linux lets a socket have (unix(7))."""
SHORT_PLACE = Path("/tmp")
STALE_S = 60.0
"""Age from which a socket that nobody listens on belongs to no gateway that is just starting."""

ServeListener = Callable[[str, socket.socket, AgentProcess | None], Awaitable[None]]
"""Serves a listening socket for a session's key, or raises OSError, ValueError or Refused.

With an agent program, what other processes send is refused; who serves the socket closes it.
"""


class _ProbedError(Exception):
    """Nothing was sent: ``remove_stale_directories`` of another gateway looked who listens."""


def remove_stale_directories(place: Path) -> None:
    """Remove the directories of gateways that were killed: nobody listens on their sockets."""
    for directory in place.glob(f"{PREFIX}*"):
        control = directory / "control"
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            info = control.lstat()
            old = time.time() - info.st_mtime > STALE_S
            if stat.S_ISSOCK(info.st_mode) and info.st_uid == os.geteuid() and old:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.setblocking(False)
                    try:
                        probe.connect(str(control))
                    except ConnectionRefusedError:
                        shutil.rmtree(directory)


class ControlSocket:
    """The listening control socket and its open connections."""

    def __init__(self, serve: ServeListener, place: Path | None = None) -> None:
        """``place``: parent of its directory; None: the temporary files. /tmp if names of sockets
        there would be too long.
        """
        self._serve_listener = serve
        place = place or Path(tempfile.gettempdir())
        if len(os.fsencode(place / f"{PREFIX}12345678" / "control")) > NAME_BYTES:
            place = SHORT_PLACE
        remove_stale_directories(place)
        self._directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self.path = self._directory / "control"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._deliveries: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Listen."""
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self.path.chmod(0o600)  # and its directory, by mkdtemp, is this user's alone
        self._socket.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def close(self) -> None:
        """Stop listening, drop the deliveries under way, remove the socket."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for task in self._deliveries:
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: the connection stays in the backlog
                logger.error("control socket: %s", error)
                return
            task = asyncio.create_task(self._deliver(connection))
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)

    async def _deliver(self, connection: socket.socket) -> None:
        """Take one listener from one connection."""
        connection.setblocking(False)
        with connection, contextlib.suppress(_ProbedError):
            try:
                async with asyncio.timeout(DELIVERY_S):
                    await self._serve(connection)
            except (OSError, ValueError, TimeoutError, Refused) as error:
                logger.warning("control socket: a delivery failed: %s", error)

    async def _serve(self, connection: socket.socket) -> None:
        key, listener, launcher = await _receive(connection)
        agent = None
        # From here on the descriptor is this process's: it leaks unless a server takes it over.
        try:
            if launcher is not None and can_tell():
                agent = AgentProcess(launcher)
            await self._serve_listener(key, listener, agent)
        except BaseException:
            listener.close()
            if agent is not None:
                agent.close()
            raise
        await asyncio.get_running_loop().sock_sendall(connection, b"1")


async def _receive(connection: socket.socket) -> tuple[str, socket.socket, int | None]:
    """Return the session key, the listener and the pid of the sandbox's launcher, if it came.

    Raises ValueError or OSError for anything else.
    """
    text = bytearray()
    handles: list[int] = []
    try:
        while not handles or b"\n" not in text:
            await wait_until_readable(connection)
            # not socket.recv_fds: it ignores its flags, so children would inherit the descriptor
            data, ancillary, _, _ = connection.recvmsg(
                LINE_BYTES,
                # space for more than the one that is allowed, so that others are seen and closed
                socket.CMSG_SPACE(4 * array.array("i").itemsize),
                socket.MSG_CMSG_CLOEXEC,  # no child process may inherit it
            )
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    received = array.array("i")
                    received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                    handles += received
            text += data
            if not data and not text:
                raise _ProbedError
            if not data:
                raise ValueError("closed before a listener was delivered")
            # bounded as it grows: a peer could send lines and descriptors without end
            if len(text) > LINE_BYTES or len(handles) > 1:
                raise ValueError("more than one line and one descriptor")
        line = json.loads(text.partition(b"\n")[0])
        key = line.get("session_key") if isinstance(line, dict) else None
        if not isinstance(key, str):
            raise ValueError("no session_key in the driver's line")
        launcher = line.get("launcher")
        if launcher is not None and (type(launcher) is not int or launcher <= 0):
            raise ValueError("launcher is no process id")
        listener = socket.socket(fileno=handles[0])
        handles.clear()  # the socket owns it now
    except BaseException:  # descriptors that arrived are open in this process, wanted or not
        for handle in handles:
            os.close(handle)
        raise
    return key, _check_listener(listener), launcher


def _check_listener(listener: socket.socket) -> socket.socket:
    """Accept a listening TCP socket and nothing else."""
    try:
        if (
            listener.family not in (socket.AF_INET, socket.AF_INET6)
            or listener.type != socket.SOCK_STREAM
            or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            raise ValueError("the descriptor is no listening TCP socket")
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


async def wait_until_readable(connection: socket.socket) -> None:
    """Return when a socket can be read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


_KEY = re.compile(r"([0-9]{2})-[A-Za-z0-9_-]{43}")


def make_replica_key(replica: int) -> str:
    """Return a new key of a session at the process of that number."""
    return f"{replica:02d}-{secrets.token_urlsafe(32)}"


def replica_of(key: str) -> int | None:
    """Return the number in a key, None if the key has no such form."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None

"""Listen in the network namespace of a sandbox on this machine, and relay what connects there.

The sandbox's namespace has a loopback and nothing else. A short program enters it, opens listening
sockets and hands them over; whoever connects inside is then served by this process, which stays
where it is. Entering takes no rights that the sandbox's owner lacks (``nsenter`` into a user
namespace of one's own).

Invariant: a listening socket leads to one place, and no name or address from inside is followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

from runners.sandboxes.contract import SandboxError

ENTER_S = 30.0
CONNECT_S = 10.0
CHUNK = 1 << 16
MOST_CONNECTIONS = 64
"""Of one sandbox at a time; further ones are closed."""
LISTEN = """
import socket, sys
there = socket.socket(fileno=int(sys.argv[1]))
made = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[2:]]
socket.send_fds(there, [b"1"], [each.fileno() for each in made])
"""


def enter_argv(pid: int) -> list[str]:
    """Return the beginning of a command in the network namespace of a process; raises OSError."""
    own, other = (Path(f"/proc/{each}/ns/user").readlink() for each in ("self", pid))
    # The kernel lets nobody enter the user namespace in which he is.
    user = ["--user", "--preserve-credentials"] if own != other else []
    return ["nsenter", "--target", str(pid), *user, "--net", "--"]


async def listen_inside(pid: int, ports: tuple[int, ...]) -> list[socket.socket]:
    """Return sockets that listen at these ports of the loopback there; raises SandboxError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        end = theirs.fileno()
        try:
            program = [sys.executable, "-I", "-S", "-c", LISTEN, str(end), *map(str, ports)]
            process = await asyncio.create_subprocess_exec(
                *enter_argv(pid), *program, pass_fds=(end,), stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise SandboxError(f"cannot enter a sandbox's network: {error}") from error
        try:
            async with asyncio.timeout(ENTER_S):
                _, printed = await process.communicate()
        except TimeoutError as error:
            raise SandboxError(f"cannot enter a sandbox's network in {ENTER_S:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        if process.returncode:
            text = printed.decode(errors="replace").strip()[-300:]
            raise SandboxError(f"cannot listen in a sandbox's network: {text}")
        _, handles, _, _ = socket.recv_fds(ours, 1, len(ports))
    return [socket.socket(fileno=handle) for handle in handles]


class NamespaceRelay:
    """Carries the connections of one listening socket to one host and port."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Return how many are open."""
        return len(self._serving)

    async def start(self, listener: socket.socket) -> None:
        """Serve on a listening socket from now on."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=CHUNK)

    def close(self) -> None:
        """Stop listening, and cut what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if self.connections > MOST_CONNECTIONS:
                return
            async with asyncio.timeout(CONNECT_S):
                there = await asyncio.open_connection(self._host, self._port, limit=CHUNK)
            with contextlib.closing(there[1]):
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, there[1]))
                    both.create_task(_copy(there[0], writer))
        except (OSError, TimeoutError, ExceptionGroup, asyncio.CancelledError):
            # One end went away, and the other is closed; or all is closed. Python 3.11 prints a
            # traceback for a handler that ends cancelled.
            pass
        finally:
            self._serving.discard(task)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the stream, and pass the end on."""
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()

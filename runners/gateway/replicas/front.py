"""The front: it accepts the connections of the gateway's one address, looks at the first request's
head, and hands each to the replica of its session.

It reads nothing: the bytes stay in the socket (MSG_PEEK), so the replica serves the connection as
if it had accepted it itself. Invariant: a connection is here for ``client_s`` at most, is looked at
``LOOKS`` times at most, and takes the place of the oldest when there are many: a client that sends
its head slowly, or never, holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress

from aiohttp import web

from runners.gateway.connections import HEADER_BYTES, MAX_UNKNOWN
from runners.gateway.control import wait_until_readable
from runners.gateway.replicas.handed_over import serve_connection
from runners.gateway.replicas.replica_set import ReplicaSet
from runners.gateway.replicas.request_head import RequestHead, is_for_all, read_head
from runners.gateway.replicas.session_key import replica_of

logger = logging.getLogger(__name__)

LOOKS = 32
"""Looks at one head. Clients send theirs in one piece or two; one that is longer or comes in more
is handed to any replica, which reads it as a single gateway does.
"""
AT_ONCE = 64
"""Connections accepted before the loop does something else."""
OUT_OF_DESCRIPTORS_S = 1.0


class Front:
    """The listener of a gateway with several processes; used on one event loop."""

    def __init__(
        self, listener: socket.socket, replicas: ReplicaSet, http: web.Server, *, client_s: float
    ) -> None:
        """``http`` serves the front's own requests; ``client_s``: time to send a head."""
        self._listener = listener
        self._replicas = replicas
        self._http = http
        self._client_s = client_s
        self._waiting: dict[asyncio.Task[None], None] = {}
        """One for each connection that is still here; oldest first."""
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)

    def start(self) -> None:
        """Accept connections."""
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Accept no more, and end the connections that are still here."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: the connection stays in the backlog
                logger.error("a connection cannot be accepted: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                self._pause = loop.call_later(OUT_OF_DESCRIPTORS_S, self.start)
                return
            connection.setblocking(False)
            if len(self._waiting) >= MAX_UNKNOWN:
                oldest = next(iter(self._waiting))
                # now, not when it has ended: the next one of this burst ends another
                del self._waiting[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._dispatch(connection))
            self._waiting[task] = None
            task.add_done_callback(lambda done: self._waiting.pop(done, None))

    async def _dispatch(self, connection: socket.socket) -> None:
        """Give a connection to whoever serves it, or close it."""
        try:
            # the client or the replica is gone, or the time is over
            with suppress(OSError):
                async with asyncio.timeout(self._client_s):
                    head = await look(connection)
                    if is_for_all(head.path):
                        await serve_connection(self._http, connection.dup())
                        return
                    replica = self._replicas.find(replica_of(head.key))
                    assert replica.channel is not None
                    await replica.channel.hand_over(connection)
        finally:
            connection.close()


async def look(connection: socket.socket) -> RequestHead:
    """Return the head of a connection's first request, of which nothing is read; an empty one if it
    is too long, or comes in too many pieces. Raises OSError if the client is gone.
    """
    seen = 0
    for _ in range(LOOKS):
        # wakes up when there is more than was seen, not because that is still there
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, seen + 1)
        await wait_until_readable(connection)
        data = connection.recv(HEADER_BYTES, socket.MSG_PEEK)
        head = read_head(data)
        if head is not None or len(data) in (0, HEADER_BYTES):
            break
        seen = len(data)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    if not data:
        raise ConnectionResetError("the client left")
    return head or RequestHead()

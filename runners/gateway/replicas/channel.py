"""The channel from the front to one replica: connections of clients, and the replicas' addresses.

It is a pair of sockets without a name, made by the front and inherited by the replica, so nobody
else can connect to it and nothing of it is left on the disk. A message is one connection (a
descriptor), or one JSON document.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CONNECTION = b"c"
MESSAGE_BYTES = 1 << 16
AT_ONCE = 64
"""Messages read before the loop does something else."""


class ReplicaChannel:
    """The front's end; ``theirs`` is inherited by the replica."""

    def __init__(self) -> None:
        self._mine, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._mine.setblocking(False)
        self._sending = asyncio.Lock()
        self._writable: asyncio.Event | None = None
        """Of the message that waits for a replica that is slow; None: none does."""

    async def hand_over(self, connection: socket.socket) -> None:
        """Give a connection to the replica; the caller closes its own descriptor of it. Raises
        OSError if the replica is gone.
        """
        await self._send(lambda: socket.send_fds(self._mine, [CONNECTION], [connection.fileno()]))

    async def tell(self, document: dict[str, Any]) -> None:
        """Send a JSON document; raises OSError if the replica is gone."""
        text = json.dumps(document).encode()
        await self._send(lambda: self._mine.send(text))

    def close(self) -> None:
        """Close both ends; whoever waits to send gets OSError."""
        if self._writable is not None:
            # while it is open: its number is another socket's next
            asyncio.get_running_loop().remove_writer(self._mine)
            self._writable.set()
        self._mine.close()
        self.theirs.close()

    async def _send(self, send: Callable[[], int]) -> None:
        async with self._sending:  # in order, and one waits for a replica that is slow
            while True:
                try:
                    send()
                except BlockingIOError:
                    await self._wait_until_writable()
                else:
                    return

    async def _wait_until_writable(self) -> None:
        loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        loop.add_writer(self._mine, self._writable.set)
        try:
            await self._writable.wait()
        finally:
            self._writable = None
            if self._mine.fileno() >= 0:
                loop.remove_writer(self._mine)


class ChannelReader:
    """The replica's end, read by the running loop until it is closed."""

    def __init__(
        self,
        descriptor: int,
        *,
        on_connection: Callable[[socket.socket], None],
        on_document: Callable[[dict[str, Any]], None],
    ) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._on_connection, self._on_document = on_connection, on_document
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        for _ in range(AT_ONCE):
            try:
                # not socket.recv_fds: it ignores its flags, so children would inherit them
                data, ancillary, _, _ = self._socket.recvmsg(
                    MESSAGE_BYTES,
                    socket.CMSG_SPACE(array.array("i").itemsize),
                    socket.MSG_CMSG_CLOEXEC,
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, ancillary = b"", []
            if not data:  # the front is gone; the parent-death pipe ends this process
                asyncio.get_running_loop().remove_reader(self._socket)
                return
            received = array.array("i")
            for _, _, payload in ancillary:
                received.frombytes(payload)
            if data != CONNECTION:
                self._on_document(json.loads(data))
            for descriptor in received:  # none if this process has too many open already
                self._take(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(False)
        except OSError:  # the client has left meanwhile
            with suppress(OSError):
                os.close(descriptor)
            return
        self._on_connection(connection)

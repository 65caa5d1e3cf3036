"""Serve the connections that the front hands over to one replica."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from runners.gateway.listening import end_connections
from runners.gateway.replicas.channel import ChannelReader
from runners.gateway.replicas.forwarding import Forwarder
from runners.gateway.replicas.peers import Peers
from runners.gateway.settings import GatewaySettings


class MakeServer(Protocol):
    """Makes the server of a listener whose foreign requests go to peers."""

    def __call__(self, *, peers: Peers) -> web.Server:
        """Return a protocol factory."""
        ...


@asynccontextmanager
async def serve_handed_over(
    make_server: MakeServer, settings: GatewaySettings
) -> AsyncIterator[None]:
    """Serve them while the block runs; a gateway of one process gets none."""
    replica = settings.replica
    if replica is None:
        yield
        return
    async with Forwarder(client_s=settings.limits.client_s) as forwarder:
        peers = Peers(replica.number, forwarder)
        http = make_server(peers=peers)
        starting: set[asyncio.Task[None]] = set()

        def start(connection: socket.socket) -> None:
            task = asyncio.create_task(serve_connection(http, connection))
            starting.add(task)
            task.add_done_callback(starting.discard)

        reader = ChannelReader(replica.channel, on_connection=start, on_document=peers.learn)
        try:
            yield
        finally:
            reader.close()
            await asyncio.gather(*starting)
            await end_connections(http)


async def serve_connection(http: web.Server, connection: socket.socket) -> None:
    """Serve a connected socket as if this process had accepted it; it may be closed already."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(http, connection)
    except OSError:
        connection.close()

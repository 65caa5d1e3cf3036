"""A TCP proxy that loses replies: the server does the work, and the client gets no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass(slots=True)
class CuttingProxy:
    """Forwards to one server, but drops the replies of the next ``cuts`` connections."""

    host: str
    port: int
    url: str = ""
    cuts: int = 0

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        cutting = self.cuts > 0
        self.cuts -= cutting
        from_server, to_server = await asyncio.open_connection(self.host, self.port)
        request = asyncio.create_task(_pump(reader, to_server))
        try:
            if cutting:
                await from_server.read(1)  # it answers, so the work is done
            else:
                await _pump(from_server, writer)
        finally:
            request.cancel()
            for end in (writer, to_server):
                end.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    """Serve a proxy of ``http://host:port``."""
    host, _, port = url.removeprefix("http://").partition(":")
    proxy = CuttingProxy(host, int(port))
    server = await asyncio.start_server(proxy.forward, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy

"""The gateway's control socket on a node where the gateway is not: it takes the listeners of
sandboxes as the gateway does, and carries what comes in to the gateway's address.

The gateway itself checks a session's key before a listener is served, and again with each request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from runners.gateway.control import BACKLOG, ControlSocket

CONNECT_S = 10.0
CHUNK = 1 << 16


class Relay:
    """Leads to one gateway."""

    def __init__(self, gateway_url: str, place: Path) -> None:
        """``place``: where its sockets are made."""
        self._url = gateway_url
        self._place = place
        found = urlsplit(gateway_url)
        self._address = found.hostname, found.port

    @asynccontextmanager
    async def control(self) -> AsyncIterator[Path]:
        """Give a control socket; what it took is closed with it."""
        doors: list[asyncio.Server] = []
        carrying: set[asyncio.Task[None]] = set()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            carrying.add(task)
            try:
                await self._carry(reader, writer)
            finally:
                carrying.discard(task)

        async def take(key: str, listener: socket.socket) -> None:
            await self._check(key)
            doors.append(await asyncio.start_server(carry, sock=listener, backlog=BACKLOG))

        control = ControlSocket(take, self._place)
        control.start()
        try:
            yield control.path
        finally:
            await control.close()
            for door in doors:
                door.close()
            for task in carrying:
                task.cancel()

    async def _check(self, key: str) -> None:
        """Raise ValueError or OSError unless the gateway knows the key."""
        try:
            async with (
                asyncio.timeout(CONNECT_S),
                aiohttp.ClientSession(trust_env=False) as http,
                http.get(f"{self._url}/v1/models", headers={"x-api-key": key}) as answer,
            ):
                if answer.status != HTTPStatus.OK:
                    raise ValueError(f"the gateway refuses its session key ({answer.status})")
        except aiohttp.ClientError as error:
            raise ConnectionError(f"the gateway does not answer: {error}") from error

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, until either end has closed; then both are."""
        try:
            async with asyncio.timeout(CONNECT_S):
                theirs, ours = await asyncio.open_connection(*self._address)
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        ways = [
            asyncio.ensure_future(_pour(reader, ours)),
            asyncio.ensure_future(_pour(theirs, writer)),
        ]
        try:
            # A client that leaves must be seen to leave: the gateway aborts its generation then.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (ours, writer):
                end.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()

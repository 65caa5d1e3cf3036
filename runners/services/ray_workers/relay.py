"""Give sandboxes a control socket of the gateway on a node where the gateway is not.

Invariant: a sandbox's listener is taken as the gateway takes it, for a session key that the gateway
knows; what connects to it is forwarded to the gateway, which checks the key of every request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from runners.gateway.http.control import BACKLOG, ControlSocket, replica_of
from runners.system.processes import AgentProcess

CONNECT_S = 10.0
CHUNK_BYTES = 1 << 16


class Relay:
    """A way to one gateway."""

    def __init__(self, gateway_urls: Sequence[str], directory: Path) -> None:
        """Make the control sockets in ``directory``; ``gateway_urls``: by number of the process."""
        self._urls = gateway_urls
        self._directory = directory

    @asynccontextmanager
    async def control(self) -> AsyncIterator[Path]:
        """Yield the path of a control socket; the listeners that it took are closed with it."""
        servers: list[asyncio.Server] = []
        agents: list[AgentProcess] = []
        connections: set[asyncio.Task[None]] = set()
        asked = asyncio.Event()
        """Something was forwarded: commands of the policy may run by now."""

        async def take_listener(
            key: str, listener: socket.socket, agent: AgentProcess | None
        ) -> None:
            async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                assert task is not None
                connections.add(task)
                task.add_done_callback(connections.discard)
                ends = [writer.get_extra_info(name)[:2] for name in ("peername", "sockname")]
                if agent is not None and not await agent.owns(*ends):
                    writer.transport.abort()  # a command of the agent's, which may have its key
                    return
                asked.set()
                for each in agents:
                    each.admit_no_more()
                await self._forward(url, reader, writer)

            url = self._urls[replica_of(key) or 0]
            await self._check_key(url, key)
            server = await asyncio.start_server(forward, sock=listener, backlog=BACKLOG)
            servers.append(server)
            if agent is not None:
                agents.append(agent)
                if asked.is_set():
                    agent.admit_no_more()

        control = ControlSocket(take_listener, self._directory)
        control.start()
        try:
            yield control.path
        finally:
            await control.close()
            for server in servers:
                server.close()
            for agent in agents:
                agent.close()
            for task in connections:  # closing a server leaves its connections open
                task.cancel()

    async def _check_key(self, url: str, key: str) -> None:
        """Raise ValueError or OSError unless the gateway knows the session key."""
        try:
            async with (
                asyncio.timeout(CONNECT_S),
                aiohttp.ClientSession(trust_env=False) as http,
                http.get(f"{url}/v1/models", headers={"x-api-key": key}) as answer,
            ):
                if answer.status != HTTPStatus.OK:
                    raise ValueError(f"the gateway refuses its session key ({answer.status})")
        except aiohttp.ClientError as error:
            raise ConnectionError(f"the gateway does not answer: {error}") from error

    async def _forward(
        self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward one connection in both directions until either end closes it."""
        address = urlsplit(url)
        try:
            async with asyncio.timeout(CONNECT_S):
                from_gateway, to_gateway = await asyncio.open_connection(
                    address.hostname, address.port
                )
        except (OSError, TimeoutError):
            writer.transport.abort()  # a reset: the agent's client retries, as it does without us
            return
        directions = [
            asyncio.ensure_future(_copy(reader, to_gateway)),
            asyncio.ensure_future(_copy(from_gateway, writer)),
        ]
        try:
            # The first end closes both: when the agent's client leaves, the gateway must see it
            # leave, to abort the generation.
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            for end in (to_gateway, writer):
                end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()

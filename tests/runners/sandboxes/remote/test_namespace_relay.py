"""What connects to a sandbox's listening socket is carried to one place, and no more of it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runners.sandboxes.contract import SandboxError
from runners.sandboxes.remote.namespace_relay import (
    MOST_CONNECTIONS,
    NamespaceRelay,
    enter_argv,
    listen_inside,
)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the number of bytes received, when the client has sent all."""
    writer.write(b"%d" % len(await reader.read()))
    writer.close()


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[NamespaceRelay, int]]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    relay = NamespaceRelay(*server.sockets[0].getsockname())
    listener = socket.create_server(("127.0.0.1", 0))
    await relay.start(listener)
    try:
        yield relay, listener.getsockname()[1]
    finally:
        relay.close()
        server.close()


async def test_both_directions_and_their_ends_are_carried() -> None:
    async with relayed() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(1 << 20))
        writer.write_eof()
        assert await reader.read() == b"1048576"
        writer.close()


async def test_a_sandbox_has_so_many_connections_and_others_none() -> None:
    async with relayed() as (_, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        for _, writer in held:
            writer.write(b"x")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        held[0][1].write_eof()
        assert await held[0][0].read() == b"1"
        for _, each in [*held, (reader, writer)]:
            each.close()


async def test_closing_cuts_what_is_open() -> None:
    async with relayed() as (relay, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not relay.connections:
            await asyncio.sleep(0)
        relay.close()
        assert await reader.read() == b""
        with pytest.raises(OSError, match="onnect"):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()


def test_the_own_user_namespace_is_not_entered() -> None:
    assert "--user" not in enter_argv(os.getpid())


async def test_a_process_that_is_gone_is_an_error_of_the_sandbox() -> None:
    with pytest.raises(SandboxError, match="cannot enter a sandbox's network"):
        await listen_inside(2**22 + 1, (8080,))

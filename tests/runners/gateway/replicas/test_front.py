"""The front looks at the head of a request and reads none of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from runners.gateway.connections import HEADER_BYTES
from runners.gateway.replicas.front import LOOKS, look
from runners.gateway.replicas.request_head import RequestHead
from runners.gateway.replicas.session_key import make_replica_key

KEY = make_replica_key(3)
REQUEST = (
    f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: 4\r\n\r\nbody"
).encode()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a client and the accepted end of its TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        with client, accepted:
            yield client, accepted


async def send(client: socket.socket, *pieces: bytes) -> None:
    """Send pieces one by one, so that each is seen before the next."""
    for piece in pieces:
        client.sendall(piece)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.parametrize("cut", [1, 30, len(REQUEST) - 5, len(REQUEST) - 4, len(REQUEST)])
async def test_a_head_in_two_pieces_is_found_and_stays_in_the_socket(
    pair: tuple[socket.socket, socket.socket], cut: int
) -> None:
    client, accepted = pair
    looking = asyncio.create_task(look(accepted))
    await send(client, REQUEST[:cut], REQUEST[cut:])
    assert await asyncio.wait_for(looking, 10) == RequestHead("/v1/messages", KEY)
    assert accepted.recv(1000) == REQUEST
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


async def test_a_head_that_fills_what_is_looked_at_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    looking = asyncio.create_task(look(accepted))
    client.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(client, b"G" * HEADER_BYTES)
    assert await asyncio.wait_for(looking, 10) == RequestHead()
    assert len(accepted.recv(2 * HEADER_BYTES)) == HEADER_BYTES


async def test_a_head_in_very_many_pieces_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    looking = asyncio.create_task(look(accepted))
    sent = 0
    async with asyncio.timeout(10):
        while not looking.done():
            await send(client, b"G")
            sent += 1
    assert await looking == RequestHead()
    assert sent >= LOOKS, "and not before"


async def test_a_client_that_leaves_ends_the_look(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    looking = asyncio.create_task(look(accepted))
    client.close()
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(looking, 10)


async def test_a_client_that_leaves_within_a_head_is_somebody_elses(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    looking = asyncio.create_task(look(accepted))
    await send(client, REQUEST[:20])
    client.shutdown(socket.SHUT_WR)
    assert await asyncio.wait_for(looking, 10) == RequestHead()

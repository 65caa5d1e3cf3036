"""A replica keeps the requests that are its own, and forwards those of others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from runners.gateway.connections import ConnectionTable, make_server
from runners.gateway.replicas.forwarding import Forwarder
from runners.gateway.replicas.peers import Peers, describe_addresses
from runners.gateway.replicas.session_key import make_replica_key

NOBODY = "http://127.0.0.1:9"
HERE, GONE = 299, 599


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Serve replica 1 of 3, whose peers are not there."""
    async with Forwarder(client_s=10.0) as forwarder:
        peers = Peers(1, forwarder)
        peers.learn(describe_addresses(NOBODY, [NOBODY, NOBODY, None]))

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await peers.answer(request) or web.Response(status=HERE)
            except ConnectionError:
                return web.Response(status=GONE)

        server = make_server(handle, ConnectionTable(client_s=10.0), None)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            async with await asyncio.get_running_loop().create_server(server, sock=listener):
                yield f"http://127.0.0.1:{port}"
                await server.shutdown(timeout=0.0)


async def ask(url: str, path: str, key: str) -> int:
    """Return the status of a request's answer."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(url + path, headers={"x-api-key": key}) as answer,
    ):
        return answer.status


@pytest.mark.parametrize(
    "key",
    [make_replica_key(1), make_replica_key(3), "unknown", ""],
    ids=["own", "of none", "unknown", "no key"],  # the keys are random: not the same in two workers
)
async def test_its_own_sessions_and_those_of_nobody_are_answered_here(url: str, key: str) -> None:
    assert await ask(url, "/v1/messages", key) == HERE


@pytest.mark.parametrize(
    ("path", "number"), [("/v1/messages", 0), ("/v1/messages", 2), ("/health", 1), ("/admin/x", 1)]
)
async def test_a_request_for_one_that_is_gone_is_cut_off_and_not_answered_here(
    url: str, path: str, number: int
) -> None:
    assert await ask(url, path, make_replica_key(number)) == GONE

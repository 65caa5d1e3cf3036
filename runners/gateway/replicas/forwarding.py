"""Forward a request to another process of the same gateway: request by request, in both directions
as it comes, with nothing kept.

A client's connection goes to the process of its first request's key. A reverse proxy puts requests
of several sessions on one connection: those of another process are forwarded to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

from runners.gateway.connections import HEADER_BYTES, ClientConnection

CONNECT_S = 10.0
OF_ONE_CONNECTION = frozenset(
    {
        "connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization", "te",
        "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers that are between two neighbours (RFC 9110, 7.6.1)."""


class Forwarder:
    """A client of the other processes; a context manager."""

    def __init__(self, *, client_s: float) -> None:
        """``client_s``: deadline for our client to take the next part of an answer."""
        self._client_s = client_s
        self._http = aiohttp.ClientSession(
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            # A connection for each request: one that is kept would count as a connection of the
            # session that used it last (``gateway.limits.connections``).
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING),
            max_field_size=HEADER_BYTES,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.close()

    async def forward(self, request: web.BaseRequest, url: str) -> web.StreamResponse:
        """Answer a request by the process at ``url``; raises ConnectionError if it is gone, as if
        the client had asked it itself.
        """
        # Texts are not joined: a path such as "@elsewhere" would lead to another host.
        target = URL(url).with_path(request.rel_url.raw_path, encoded=True)
        if query := request.rel_url.raw_query_string:
            target = URL(f"{target}?{query}", encoded=True)
        headers = [(name, value) for name, value in request.headers.items() if _is_passed(name)]
        connection = request.protocol
        assert isinstance(connection, ClientConnection)  # every listener's server makes these
        try:
            with connection.answered_elsewhere():
                async with self._http.request(
                    request.method,
                    target,
                    headers=headers,
                    data=request.content if request.body_exists else None,
                    allow_redirects=False,
                ) as answer:
                    if answer.status != HTTPStatus.UNAUTHORIZED:
                        connection.accept_elsewhere()
                    return await self._pass_on(request, answer)
        except aiohttp.ClientError as error:
            raise ConnectionResetError(f"a process of the gateway is gone: {error}") from error

    async def call(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """Send a request of our own; return the answer's status and body. Raises ConnectionError.

        It has no deadline: the caller's does.
        """
        try:
            async with self._http.request(method, url, data=body, headers=headers) as answer:
                return answer.status, await answer.read()
        except aiohttp.ClientError as error:
            raise ConnectionResetError(f"a process of the gateway is gone: {error}") from error

    async def _pass_on(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if _is_passed(name):
                response.headers.add(name, value)
        async with asyncio.timeout(self._client_s):
            await response.prepare(request)
        async for chunk in answer.content.iter_any():
            async with asyncio.timeout(self._client_s):
                await response.write(chunk)
        async with asyncio.timeout(self._client_s):
            await response.write_eof()
        return response


def _is_passed(name: str) -> bool:
    return name.lower() not in OF_ONE_CONNECTION

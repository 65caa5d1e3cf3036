"""Call functions of another process of the run by JSON over HTTP.

Invariant: a call is a POST with a bearer token, which names the caller. Argument and result are
JSON (or bytes: a repository); what the function raises is raised by the call (``remote_errors``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from conf.errors import error_text
from runners.ray_workers.remote_errors import Unreachable, decode_error, encode_error
from runners.rollouts.attempt import being_cancelled
from runners.store.json_text import dumps, loads

BODY_BYTES = 1 << 28
"""Limit of a body: a record holds a patch and a log, a task its tests."""
CONNECT_S = 10.0
SHUTDOWN_S = 1.0
"""Time that calls in progress get when a server closes."""
FAILED = 500
"""Status of an answer that is an encoded exception."""
BYTES = "application/octet-stream"

Handler = Callable[[Any, Any], Awaitable[Any]]
"""Takes the caller and the body's JSON value; returns a JSON value or bytes."""


class JsonServer:
    """Functions that other processes may call."""

    def __init__(self, callers: Mapping[str, Any], handlers: Mapping[str, Handler]) -> None:
        """Let ``callers`` (by token, read at each call) call ``handlers`` (by name, the path)."""
        self._callers = callers
        self._handlers = handlers
        app = web.Application(client_max_size=BODY_BYTES)
        app.router.add_post("/{name}", self._answer)
        # A handler runs on when its caller leaves: a record that was sent is stored.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)

    async def start(self, host: str) -> int:
        """Listen on a free port and return it; raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """Stop listening and end the calls in progress."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self._callers:
            raise web.HTTPUnauthorized
        handler = self._handlers.get(request.match_info["name"])
        if handler is None:
            raise web.HTTPNotFound
        body = await request.read()
        if token not in self._callers:  # given up while it was sending
            raise web.HTTPUnauthorized
        try:
            found = await handler(self._callers[token], loads(body))
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and being_cancelled():
                raise  # the server closes; any other cancellation is an answer
            return web.Response(text=dumps(encode_error(error)), status=FAILED)
        if isinstance(found, bytes):
            return web.Response(body=found, content_type=BYTES)
        return web.Response(text=dumps(found), content_type="application/json")


class JsonClient:
    """Calls the functions of one server; made on a running event loop and closed once."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            trust_env=False,
        )

    async def call(self, name: str, body: object = None, *, deadline_s: float | None) -> Any:
        """Return what the function returns; raises what it raises, and Unreachable."""
        if self._http.closed:
            raise Unreachable(f"the connection to {self.url} is closed")
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._http.post(f"{self.url}/{name}", data=dumps(body).encode()) as response,
            ):
                raw = await response.read()
                if response.status != FAILED:
                    response.raise_for_status()
                    return raw if response.content_type == BYTES else loads(raw)
                failure = decode_error(loads(raw))
        except TimeoutError as error:
            text = f"{self.url} did not answer within {deadline_s or CONNECT_S:g} s"
            raise Unreachable(text) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: no JSON
            raise Unreachable(f"{self.url} does not answer: {error_text(error)}") from error
        raise failure  # here, since a TimeoutError of the function is an OSError

    async def close(self) -> None:
        """Close all connections; calls in progress and later ones raise Unreachable."""
        await self._http.close()

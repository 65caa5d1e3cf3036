"""The base of the stand-in servers: one handler, served on loopback."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from typing import Self

from aiohttp import web

BODY_BYTES = 64 << 20
"""Of a request: a prompt of a million ids has 7 MB, and aiohttp's own limit is one."""


class LoopbackServer(ABC):
    """A server of one handler; ``async with`` serves it at ``url``."""

    url = ""
    port = 0
    """0: any that is free."""
    _runner: web.ServerRunner | None = None

    async def __aenter__(self) -> Self:
        make_request = partial(
            web.BaseRequest, loop=asyncio.get_running_loop(), client_max_size=BODY_BYTES
        )
        # handler_cancellation: who answers notices, as real servers do, that a client has left
        server = web.Server(self._handle, handler_cancellation=True, request_factory=make_request)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @abstractmethod
    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""

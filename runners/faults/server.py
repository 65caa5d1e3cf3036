"""A gateway whose clients can go away in the middle of their turn."""

from __future__ import annotations

from contextvars import ContextVar

from aiohttp import web

from runners.gateway.registry import SessionEntry
from runners.gateway.server import GatewayServer

_asking: ContextVar[web.BaseRequest | None] = ContextVar("asking", default=None)
"""The request that the running turn was begun for: a task inherits it from the handler."""


class DroppingServer(GatewayServer):
    """A server that tells the turns it begins whose connection they answer."""

    def http(self, only: SessionEntry | None = None) -> web.Server:
        """Return a protocol factory for a listener; see ``GatewayServer.http``."""
        server = super().http(only)
        answer = server.request_handler

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            _asking.set(request)
            return await answer(request)

        server.request_handler = handle
        return server


def drop_client() -> None:
    """Cut the connection of the client whose turn this is, as if it had gone away."""
    request = _asking.get()
    if request is not None and request.transport is not None:
        request.transport.abort()

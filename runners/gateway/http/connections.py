"""Connections of clients: how many a session may have, and how long one may say nothing.

A connection belongs to nobody until a request on it brings a valid key; on a listener that came out
of a session's sandbox it is that session's from the beginning. Connections that stay without an
owner are ended after a while, and the oldest of them when there are many: a client that has a key
brings it within milliseconds, so only those who hold connections open for nothing lose them.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from runners.gateway.refusal import OverLimit
from runners.gateway.request_limits import LineBudget, SessionBudget

MAX_UNKNOWN = 256
"""Connections without an owner at once."""

UNKNOWN_LINES = 400
"""A second, and at once, of a connection on which no valid key has come yet: headers, and the first
bytes of a body.
"""

HEADER_BYTES = 64 << 10
"""Of one header: Codex sends the metadata of its turn in one."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ConnectionTable:
    """The connections of a gateway on which no valid key has come yet; changed by them."""

    def __init__(self, *, client_s: float) -> None:
        """``client_s``: time for a new connection to bring a key."""
        self._client_s = client_s
        self._unknown: dict[ClientConnection, asyncio.TimerHandle] = {}
        """With the timer that ends each; oldest first."""

    def add(self, connection: ClientConnection) -> None:
        """Take a new connection."""
        if len(self._unknown) >= MAX_UNKNOWN:
            oldest = next(iter(self._unknown))
            self.remove(oldest)
            oldest.abort()
        loop = asyncio.get_running_loop()
        self._unknown[connection] = loop.call_later(self._client_s, connection.abort)

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection: it has brought a key, or is closed."""
        timer = self._unknown.pop(connection, None)
        if timer is not None:
            timer.cancel()


class ClientConnection(web.RequestHandler):
    """aiohttp's protocol of one connection, which counts itself."""

    __slots__ = ("_lines", "_listener_owner", "_owner", "_table")

    def __init__(
        self,
        server: web.Server,
        table: ConnectionTable,
        owner: SessionBudget | None,
        **settings: Any,
    ) -> None:
        super().__init__(server, **settings)
        self._table = table
        self._listener_owner = owner
        self._owner: SessionBudget | None = None
        self._lines: LineBudget | None = LineBudget(UNKNOWN_LINES)
        """Its own until it has an owner; None: it is the admin's, who may send any number."""

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``; ends a connection that sends too many lines, before they are
        parsed.
        """
        if self._lines is None or self._lines.take(data):
            super().data_received(data)
            return
        if self._owner is not None:
            self._owner.over_limit += 1
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._table.add(self)
        if self._listener_owner is not None:
            try:
                self._set_owner(self._listener_owner)
            except OverLimit:
                self._listener_owner.over_limit += 1
                self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See ``asyncio.Protocol``."""
        self._table.remove(self)
        if self._owner is not None:
            self._owner.remove_connection()
            self._owner = None
        super().connection_lost(exc)

    def log_exception(self, *args: Any, **details: Any) -> None:
        """See aiohttp, which logs a traceback for each request that is no HTTP and for each client
        that left: a sandbox could fill the disk with them.
        """
        if not isinstance(details.get("exc_info"), ConnectionError | HttpProcessingError):
            super().log_exception(*args, **details)

    def accept(self, owner: SessionBudget | None) -> None:
        """Let it stay open: a request on it has brought the key of a session, or the admin's
        (None). Raises OverLimit if the session has as many as it may have.
        """
        if owner is None:
            self._lines = None
        elif owner is not self._owner:
            self._set_owner(owner)
        self._table.remove(self)

    def abort(self) -> None:
        """End it without sending what is left."""
        if self.transport is not None:
            self.transport.abort()

    def _set_owner(self, owner: SessionBudget) -> None:
        owner.add_connection()
        if self._owner is not None:
            self._owner.remove_connection()
        self._owner, self._lines = owner, owner.lines


class ClientServer(web.Server):
    """aiohttp's server of one listener, with our protocol."""

    def __init__(
        self,
        handler: Handler,
        table: ConnectionTable,
        *,
        owner: SessionBudget | None,
        **settings: Any,
    ) -> None:
        """``owner``: session that all connections belong to; None: they tell by their keys."""
        loop = asyncio.get_running_loop()
        super().__init__(
            handler,
            request_factory=partial(web.BaseRequest, loop=loop),
            # off by default in aiohttp; with it a client that disconnects aborts its generation
            handler_cancellation=True,
        )
        self._make_connection = partial(ClientConnection, self, table, owner, loop=loop, **settings)

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return self._make_connection()


def make_server(
    handler: Handler, table: ConnectionTable, owner: SessionBudget | None
) -> web.Server:
    """Return a protocol factory for a listener."""
    return ClientServer(
        handler,
        table,
        owner=owner,
        access_log=None,
        max_field_size=HEADER_BYTES,
        # compressed bodies are refused: a few kilobytes could unpack to gigabytes
        auto_decompress=False,
    )


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit on open files to the hard one: a connection takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""Serve ``GET /metrics`` on a port of its own, on loopback, behind a key.

The port of the agents has no such endpoint: what the policy can reach there tells it nothing of
other sessions. The key lies in the user's cache, where a scraper reads it (``credentials_file``).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from conf.cache import cache_root
from runners.gateway.http.http_answers import key_of
from runners.gateway.http.listening import GatewayFailed, end_connections
from runners.gateway.monitoring.exposition import write_exposition
from runners.system.processes import BACKLOG, listen, load_secret

ReadCounts = Callable[[], Mapping[str, Any]]
"""Returns what this process of the gateway has counted."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
HOST = "127.0.0.1"


@asynccontextmanager
async def serve_metrics(
    port: int | None, process: int, read: ReadCounts, *, patience_s: float
) -> AsyncIterator[None]:
    """Serve while the block runs; None: serve nothing. Raises GatewayFailed.

    ``process``: number of this one among the gateway's, a label of all that is served.
    """
    if port is None:
        yield
        return
    key = load_key().encode()
    try:
        sock = await asyncio.to_thread(listen, HOST, port, patience_s=patience_s)
    except OSError as error:
        raise GatewayFailed(
            f"gateway.metrics_port={port} cannot be listened on ({error}): choose another, or null"
        ) from error

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        given = key_of(request.headers).encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, key):
            return web.Response(status=401, headers={"www-authenticate": "Bearer"})
        if request.path != "/metrics" or request.method != "GET":
            return web.Response(status=404, text="GET /metrics\n")
        body = write_exposition(str(process), read())
        return web.Response(body=body, headers={"content-type": TEXT})

    http = web.Server(answer)
    listener = await asyncio.get_running_loop().create_server(http, sock=sock, backlog=BACKLOG)
    try:
        yield
    finally:
        listener.close()
        await end_connections(http)


def key_path() -> Path:
    """Return the file of the user's key, one for all runs."""
    return cache_root() / "gateway" / "metrics.key"


def load_key() -> str:
    """Return the key, made at the first time; raises GatewayFailed."""
    path = key_path()
    try:
        return load_secret(path)
    except (OSError, ValueError) as error:
        raise GatewayFailed(
            f"{path}, the key of gateway.metrics_port, is unusable: {error}"
        ) from error

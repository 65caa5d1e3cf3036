"""Listen where a gateway's settings say, and end the connections of a server in order."""

from __future__ import annotations

import asyncio
import errno
import socket

from aiohttp import web

from conf.errors import AgentrlError, ExitCode
from runners.gateway.settings import GatewaySettings
from runners.system.processes import listen, port_of

HTTP_CLOSE_S = 1.0
"""Requests that are still being answered at shutdown get this long."""


class GatewayFailed(AgentrlError):
    """The gateway cannot serve."""

    exit_code = ExitCode.SERVICE_GONE


async def open_listener(settings: GatewaySettings) -> tuple[socket.socket, str]:
    """Return a listening socket and its URL; raises GatewayFailed."""
    host, port = settings.host, settings.port
    try:
        sock = await asyncio.to_thread(listen, host, port, patience_s=settings.port_patience_s)
    except OSError as error:
        raise _no_port(host, port, error) from error
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return sock, f"http://{f'[{shown}]' if ':' in shown else shown}:{port_of(sock)}"


async def end_connections(http: web.Server) -> None:
    """End the idle connections at once, then those that are being answered after their time.

    The caller accepts no new ones any more. In another order an idle keep-alive connection could
    send one more request to a server that is closing.
    """
    http.pre_shutdown()
    await http.shutdown(timeout=HTTP_CLOSE_S)


def _no_port(host: str, port: int, error: OSError) -> GatewayFailed:
    if error.errno == errno.EADDRINUSE:
        return GatewayFailed(
            f"gateway.port={port} on {host} is in use: choose another, "
            "or gateway.port=0 for any free one"
        )
    if error.errno == errno.EACCES:
        return GatewayFailed(f"gateway.port={port} needs privileges: choose one above 1023, or 0")
    return GatewayFailed(f"gateway.host={host}: cannot listen there: {error}")

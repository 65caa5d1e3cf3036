"""Serve a gateway of several processes: its replicas, and the front that holds the one address."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from runners.concurrency.first_event import wait_for_any
from runners.gateway.connections import raise_descriptor_limit
from runners.gateway.control import ControlSocket
from runners.gateway.listening import end_connections, open_listener
from runners.gateway.monitoring.endpoint import serve_metrics
from runners.gateway.replicas.forwarding import Forwarder
from runners.gateway.replicas.front import Front
from runners.gateway.replicas.front_server import FrontServer
from runners.gateway.replicas.replica_set import ReplicaProgram, ReplicaSet
from runners.gateway.replicas.session_key import replica_of
from runners.gateway.replicas.shared_rate import open_shared_rate
from runners.gateway.session_rollouts import RolloutPlaces
from runners.gateway.settings import GatewaySettings
from runners.processes.ports import BACKLOG
from runners.sandboxes.agent_process import AgentProcess


async def serve_replicas(
    settings: GatewaySettings,
    module: str,
    sent: Mapping[str, Any],
    *,
    announce: Callable[[dict[str, Any]], None],
    stop: asyncio.Event,
) -> None:
    """Serve until ``stop``, as ``gateway.service.serve`` does with one process.

    ``module`` is the program of a replica, ``sent`` what it is started with: the settings as JSON,
    and whatever else it takes. Raises AgentrlError, also when a replica cannot go on.
    """
    raise_descriptor_limit()
    admin_key = secrets.token_urlsafe(32)
    async with AsyncExitStack() as exits:
        listener, url = await open_listener(settings)
        exits.callback(listener.close)
        rate = open_shared_rate()
        exits.callback(os.close, rate)
        forwarder = await exits.enter_async_context(Forwarder(client_s=settings.limits.client_s))
        replicas = ReplicaSet(
            settings,
            ReplicaProgram(module, sent),
            forwarder,
            admin_key=admin_key,
            rate=rate,
            control_place=Path(tempfile.gettempdir()),
        )
        server = FrontServer(
            replicas,
            forwarder,
            admin_key=admin_key,
            limits=settings.limits,
            places=RolloutPlaces() if settings.keep_rollouts else None,
        )
        http = server.make_http_server()
        exits.push_async_callback(end_connections, http)
        front = Front(listener, replicas, http, client_s=settings.limits.client_s)
        exits.push_async_callback(front.close)
        # before the front closes, so that running turns can be answered
        exits.push_async_callback(replicas.stop)
        await replicas.start(await exits.enter_async_context(_listen_for_replicas(http, settings)))
        await exits.enter_async_context(
            serve_metrics(
                settings.metrics_port, replicas.read_metrics, patience_s=settings.port_patience_s
            )
        )
        control = ControlSocket(lambda *delivered: _deliver(replicas, *delivered))
        exits.push_async_callback(control.close)
        control.start()
        front.start()
        announce(
            {"url": url, "admin_key": admin_key, "control": str(control.path), "pid": os.getpid()}
        )
        await wait_for_any(stop, replicas.failed)
        if replicas.failure is not None:
            raise replicas.failure


@asynccontextmanager
async def _listen_for_replicas(http: web.Server, settings: GatewaySettings) -> AsyncIterator[str]:
    """Serve what replicas forward to the front; yield its URL.

    Not at the clients' address: there it would be looked at and handed over, and so could go round.
    """
    own = settings.model_copy(update={"host": "127.0.0.1", "port": 0})
    sock, url = await open_listener(own)
    server = await asyncio.get_running_loop().create_server(http, sock=sock, backlog=BACKLOG)
    try:
        yield url
    finally:
        server.close()


async def _deliver(
    replicas: ReplicaSet, key: str, listener: socket.socket, agent: AgentProcess | None
) -> None:
    """Give the listener of a sandbox to the replica of its session."""
    replica = replicas.find(replica_of(key))
    assert replica.service is not None
    facts = {"session_key": key, "launcher": agent.launcher if agent else None}
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, replica.service.info["control"])
        socket.send_fds(connection, [json.dumps(facts).encode() + b"\n"], [listener.fileno()])
        if await loop.sock_recv(connection, 1) != b"1":
            raise ConnectionResetError("the process of its session refused it")
    # served by that process from now on
    listener.close()
    if agent is not None:
        agent.close()

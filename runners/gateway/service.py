"""The gateway process: settings in, HTTP out, until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt

from conf.errors import AgentrlError, ExitCode
from runners.engines.client import HttpEngine
from runners.gateway.control import Control
from runners.gateway.registry import Registry
from runners.gateway.server import GatewayServer
from runners.gateway.session import Sampling, Services
from runners.gateway.tokenizer import load_renderer, load_tokenizer
from runners.gateway.turn_log import Journal, TurnLog
from runners.trajectory.store import RunStore

ENGINE_GRACE_S = 1.0
"""The engine's client gives up a little after us, so that our own deadline is the one that speaks.
"""


class GatewayFailed(AgentrlError):
    """The gateway cannot serve."""

    exit_code = ExitCode.SERVICE_GONE


class SamplingSettings(BaseModel):
    """How sessions sample unless they say otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: PositiveInt


class GatewaySettings(BaseModel):
    """What a gateway process is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_dir: Path
    host: str
    port: NonNegativeInt
    engine_url: str
    tokenizer: Path
    renderer: str
    max_context_tokens: PositiveInt
    sampling: SamplingSettings
    ping_s: PositiveFloat
    turn_s: PositiveFloat
    predecessor_s: PositiveFloat = 10.0
    """A gateway of the same run that is just dying may hold the store this long."""


async def serve(
    settings: dict[str, Any], *, announce: Callable[[dict[str, Any]], None], stop: asyncio.Event
) -> None:
    """Serve until ``stop``; announces ``url``, ``admin_key``, ``control`` and ``pid`` when ready.

    Needs a run in ``run_dir``. Raises AgentrlError if the port, the store or the tokenizer cannot
    be had.
    """
    checked = GatewaySettings.model_validate(settings)
    tokenizer = load_tokenizer(checked.tokenizer)
    renderer = load_renderer(tokenizer, checked.renderer)
    journal = Journal()
    engine = HttpEngine(checked.engine_url, deadline_s=checked.turn_s + ENGINE_GRACE_S)
    services = Services(engine, tokenizer, renderer, journal, checked.turn_s)
    registry = Registry(
        services,
        Sampling(**checked.sampling.model_dump()),
        max_context_tokens=checked.max_context_tokens,
    )
    admin_key = secrets.token_urlsafe(32)
    server = GatewayServer(
        registry, admin_key=admin_key, ping_s=checked.ping_s, io_s=checked.turn_s
    )
    try:
        await journal.open(partial(_open_store, checked.run_dir, checked.predecessor_s))
        async with (
            _listening(server, checked.host, checked.port) as url,
            _controlled(server) as path,
        ):
            announce({"url": url, "admin_key": admin_key, "control": path, "pid": os.getpid()})
            await stop.wait()
            await registry.close()
    finally:
        await engine.close()
        await journal.close()


def _open_store(run_dir: Path, wait_s: float) -> TurnLog:
    store = RunStore.open(run_dir)
    try:
        store.claim_arrays(wait_s)
    except BaseException:
        store.close()
        raise
    return store


@asynccontextmanager
async def _listening(server: GatewayServer, host: str, port: int) -> AsyncIterator[str]:
    http: web.Server = server.http()
    try:
        listener = await asyncio.get_running_loop().create_server(http, host, port, backlog=1024)
    except OSError as error:
        raise _no_port(host, port, error) from error
    bound = listener.sockets[0].getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
    try:
        yield f"http://{shown}:{bound}"
    finally:
        listener.close()
        http.pre_shutdown()
        await http.shutdown(timeout=1.0)


@asynccontextmanager
async def _controlled(server: GatewayServer) -> AsyncIterator[str]:
    control = Control(server)
    control.start()
    try:
        yield str(control.path)
    finally:
        await control.close()


def _no_port(host: str, port: int, error: OSError) -> GatewayFailed:
    if error.errno == errno.EADDRINUSE:
        return GatewayFailed(
            f"gateway.port={port} on {host} is in use: choose another, "
            "or gateway.port=0 for any free one"
        )
    if error.errno == errno.EACCES:
        return GatewayFailed(f"gateway.port={port} needs privileges: choose one above 1023, or 0")
    return GatewayFailed(f"gateway.host={host}: cannot listen there: {error}")

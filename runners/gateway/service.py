"""The gateway process: settings in, HTTP out, until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from conf.errors import AgentrlError, ExitCode
from conf.sections.model import CHAT_TEMPLATE
from runners.concurrency.limits import Admission, TokenBucket
from runners.engines.client import HttpEngine
from runners.engines.contract import Engine
from runners.engines.resilient import ResilientEngine
from runners.engines.sglang.workers import connect_engine
from runners.gateway.chat_template import OutputParser, ServerParsers, make_renderer
from runners.gateway.control import ControlSocket, serve_listener
from runners.gateway.registry import SessionRegistry
from runners.gateway.server import GatewayServer
from runners.gateway.session import SessionSampling, SessionServices
from runners.gateway.tokenizer import load_tokenizer
from runners.gateway.turn_log import AsyncTurnLog, TurnLog
from runners.processes.ports import BACKLOG, PATIENCE_S, listen, port_of
from runners.store.run_store import RunStore
from runners.trajectory.routing import RoutingShape

MAX_ENGINE_CALLS = 4096
"""Calls of the engine in flight: as many as there are, until it pushes back."""

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


class RoutingSettings(BaseModel):
    """The fields of ``RoutingShape``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: PositiveInt
    top_k: PositiveInt
    experts: PositiveInt
    routed: tuple[NonNegativeInt, ...]


class GatewaySettings(BaseModel):
    """What a gateway process is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_dir: Path
    host: str
    port: NonNegativeInt
    engine_url: str
    engine_workers: tuple[str, ...] = ()
    """As ``engine.workers``."""
    tool_call_parser: str | None = None
    """Set if the renderer is the chat template: then the engine's servers read what is sampled."""
    reasoning_parser: str | None = None
    tokenizer: Path
    renderer: str
    max_context_tokens: PositiveInt
    sampling: SamplingSettings
    ping_s: PositiveFloat
    turn_s: PositiveFloat
    engine_attempts: PositiveInt
    engine_calls_per_s: PositiveFloat | None
    adaptive: bool
    watchdog_s: NonNegativeFloat = 0.0
    """As ``observe.watchdog_s``."""
    routing: RoutingSettings | None = None
    """Set if the engine's routing is to be captured."""
    predecessor_s: PositiveFloat = 10.0
    """A gateway of the same run that is just dying may hold the store this long."""
    port_patience_s: PositiveFloat = PATIENCE_S
    """And the port this long."""


@dataclass(frozen=True, slots=True)
class GatewayHooks:
    """What a gateway is put together from, where others may stand."""

    engine: Callable[[Engine, AsyncTurnLog], Engine] = lambda engine, journal: engine
    """Put around the client of the engine."""
    server: type[GatewayServer] = GatewayServer


async def serve(
    settings: dict[str, Any],
    *,
    announce: Callable[[dict[str, Any]], None],
    stop: asyncio.Event,
    parts: GatewayHooks = GatewayHooks(),
) -> None:
    """Serve until ``stop``; announces ``url``, ``admin_key``, ``control`` and ``pid`` when ready.

    Needs a run in ``run_dir``. Raises AgentrlError if the port, the store or the tokenizer cannot
    be had, and StoreError when the disk fails: a gateway that cannot keep turns ends.
    """
    checked = GatewaySettings.model_validate(settings)
    tokenizer = load_tokenizer(checked.tokenizer)
    renderer = make_renderer(tokenizer, checked.renderer, checked.tokenizer)
    reader = _reader(checked) if checked.renderer == CHAT_TEMPLATE else None
    journal = AsyncTurnLog()
    engine = _engine(checked, parts, journal)
    shape = RoutingShape(**checked.routing.model_dump()) if checked.routing else None
    services = SessionServices(engine, tokenizer, renderer, journal, shape, reader)
    registry = SessionRegistry(
        services,
        SessionSampling(**checked.sampling.model_dump()),
        max_context_tokens=checked.max_context_tokens,
    )
    admin_key = secrets.token_urlsafe(32)
    server = parts.server(
        registry, engine, admin_key=admin_key, ping_s=checked.ping_s, io_s=checked.turn_s
    )
    try:
        await journal.open(partial(_open_store, checked.run_dir, checked.predecessor_s))
        async with (
            _listening(server, checked) as url,
            _controlled(server) as path,
        ):
            announce({"url": url, "admin_key": admin_key, "control": path, "pid": os.getpid()})
            await _wait_for_any(stop, journal.broken)
            if journal.failure is not None:  # what is not kept is not to be answered
                raise journal.failure
            await registry.close()
    finally:
        if reader is not None:
            await reader.close()
        await engine.close()
        await journal.close()


async def _wait_for_any(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _engine(
    settings: GatewaySettings, parts: GatewayHooks, journal: AsyncTurnLog
) -> ResilientEngine:
    client = connect_engine(
        settings.engine_url,
        settings.engine_workers,
        deadline_s=settings.turn_s + ENGINE_GRACE_S,
    )
    return ResilientEngine(
        parts.engine(client, journal),
        attempts=settings.engine_attempts,
        deadline_s=settings.turn_s,
        bucket=TokenBucket(settings.engine_calls_per_s),
        admission=Admission(MAX_ENGINE_CALLS, adaptive=settings.adaptive, gain=1.0),
    )


def _reader(settings: GatewaySettings) -> OutputParser:
    assert settings.tool_call_parser is not None  # a rule of the configuration
    servers = settings.engine_workers or (settings.engine_url,)
    return ServerParsers(
        [HttpEngine(server) for server in servers],
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
    )


def _open_store(run_dir: Path, wait_s: float) -> TurnLog:
    store = RunStore.open(run_dir)
    try:
        store.claim_arrays(wait_s)
    except BaseException:
        store.close()
        raise
    return store


@asynccontextmanager
async def _listening(server: GatewayServer, settings: GatewaySettings) -> AsyncIterator[str]:
    host, port = settings.host, settings.port
    try:
        sock = await asyncio.to_thread(listen, host, port, patience_s=settings.port_patience_s)
    except OSError as error:
        raise _no_port(host, port, error) from error
    http: web.Server = server.http()
    listener = await asyncio.get_running_loop().create_server(http, sock=sock, backlog=BACKLOG)
    bound = port_of(sock)
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
    try:
        yield f"http://{shown}:{bound}"
    finally:
        listener.close()
        http.pre_shutdown()
        await http.shutdown(timeout=1.0)


@asynccontextmanager
async def _controlled(server: GatewayServer) -> AsyncIterator[str]:
    control = ControlSocket(partial(serve_listener, server))
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

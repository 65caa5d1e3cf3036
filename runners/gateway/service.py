"""Serve a gateway: from its settings to HTTP and the control socket, until it is stopped; in the
caller's loop, or as a child process of a run (protocol: ``runners.system.processes.service``).

Order is what matters here: the address is announced only when the store is open and the port is
bound; the store is closed last, when no turn can come any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from conf.errors import AgentrlError
from conf.sections.model import CHAT_TEMPLATE
from runners.engines.client import HttpEngine
from runners.engines.contract import Engine
from runners.engines.fixed_engines import connect_fixed_engine
from runners.engines.resilient import ResilientEngine
from runners.engines.sglang import connect_engine
from runners.gateway.gc_tuning import COLLECTOR
from runners.gateway.http.connections import raise_descriptor_limit
from runners.gateway.http.control import ControlSocket, make_replica_key
from runners.gateway.http.listening import end_connections, open_listener
from runners.gateway.http.metrics_endpoint import serve_metrics
from runners.gateway.http.server import GatewayServer, Handler
from runners.gateway.sessions.registry import SessionRegistry, make_key
from runners.gateway.sessions.session import SessionServices
from runners.gateway.sessions.session_rollouts import RolloutPlaces, SessionRollouts
from runners.gateway.sessions.turn_log import AsyncTurnLog, TurnLog
from runners.gateway.sessions.wire_recorder import find_environment_secrets
from runners.gateway.settings import GatewaySettings
from runners.gateway.texts.chat_template import ServerParsers
from runners.gateway.texts.text_pool import TextPool
from runners.gateway.texts.text_work import make_text_work
from runners.gateway.texts.texts import Texts
from runners.records.store import RunStore
from runners.system.concurrency import Admission, TokenBucket, wait_for_any
from runners.system.diagnostics import install_diagnostics
from runners.system.processes import BACKLOG, receive_settings, wait_for_parent_exit
from runners.system.processes import announce as announce_service

logger = logging.getLogger(__name__)

MAX_ENGINE_CALLS = 4096
"""Calls of the engine in flight at first; admission lowers it when the engine pushes back."""

SWITCH_S = 0.0005
"""Time after which a busy loop lets the turn log's thread go on, which asks for the interpreter
after each of its half a dozen calls of SQLite and the system. With Python's own 5 ms a turn that is
stored beside others waits for them ten times as long as its work takes.
"""

ENGINE_GRACE_S = 1.0
"""The engine's client gives up this much after the gateway, so that the gateway's own deadline
decides, and its error names it.
"""


@dataclass(frozen=True, slots=True)
class GatewayHooks:
    """The places where a fault plan, a replay or a preflight puts something else."""

    wrap_engine: Callable[[Engine, AsyncTurnLog], Engine] = lambda engine, turn_log: engine
    """Return the engine to ask instead of the client of ``engine_url``."""
    wrap_handler: Callable[[Handler], Handler] = lambda handler: handler
    """Return what answers requests instead of the server's own handler."""
    text_processes: bool = True
    """Let processes work on long texts. Without them the loop does: where nobody else waits for it,
    the second that each process takes to start is saved.
    """


NO_HOOKS = GatewayHooks()
PopHooks = Callable[[dict[str, Any]], GatewayHooks]
"""Takes from the received settings what is not the gateway's own, and makes its hooks of it."""


async def serve(
    settings: GatewaySettings,
    *,
    announce: Callable[[dict[str, Any]], None],
    stop: asyncio.Event,
    hooks: GatewayHooks = NO_HOOKS,
) -> None:
    """Serve until ``stop``; announce ``url``, ``admin_key``, ``control`` and ``pid`` when ready.

    Needs a run in ``run_dir``. Raises AgentrlError if the port, the store or the tokenizer cannot
    be had, and StoreError when the disk fails: a gateway that cannot keep turns ends.
    """
    tokenizer, replica = settings.tokenizer, settings.replica
    family = settings.renderer, settings.control_text
    work = None if tokenizer is None else make_text_work(tokenizer, *family)
    parser = _server_parsers(settings) if settings.renderer == CHAT_TEMPLATE else None
    turn_log = AsyncTurnLog()
    engine = _engine(settings, hooks, turn_log)
    pool = TextPool(tokenizer, *family, settings.limits) if hooks.text_processes else None
    texts = Texts(work, settings.limits, pool)
    services = SessionServices(
        engine,
        texts,
        turn_log,
        settings.limits,
        routing=settings.routing,
        output_parser=parser,
        compaction_window=settings.compaction_window,
        wire_secrets=find_environment_secrets() if settings.record_wire else None,
    )
    places = RolloutPlaces(replica) if settings.keep_rollouts else None
    registry = SessionRegistry(
        services,
        settings.sampling,
        max_context_tokens=settings.max_context_tokens,
        rollouts=SessionRollouts(turn_log, places) if places else None,
        make_key=partial(make_replica_key, replica.number) if replica else make_key,
    )
    raise_descriptor_limit()
    admin_key = replica.admin_key if replica else secrets.token_urlsafe(32)
    server = GatewayServer(
        registry,
        engine,
        admin_key=admin_key,
        ping_s=settings.ping_s,
        limits=settings.limits,
        wrap_handler=hooks.wrap_handler,
    )
    try:
        await turn_log.open(partial(_open_store, settings, places))
        if replica is not None:  # all may be paused now: who started it says when to begin
            await engine.pause(0.0)
        async with (
            _control_socket(server) as path,  # first: the answer to a new session names it
            _listening(server, settings) as url,
            serve_metrics(
                settings.metrics_port,
                replica.number if replica else 0,
                server.read_metrics,
                patience_s=settings.port_patience_s,
            ),
        ):
            announce({"url": url, "admin_key": admin_key, "control": path, "pid": os.getpid()})
            await wait_for_any(stop, turn_log.broken)
            if turn_log.failure is not None:  # no answer without a stored turn: nothing is left
                raise turn_log.failure
            # while the listeners are still open, so that running turns can be answered
            await registry.close()
    finally:
        await texts.close()
        if parser is not None:
            await parser.close()
        await engine.close()
        await turn_log.close()


@asynccontextmanager
async def serve_inline(
    settings: GatewaySettings, hooks: GatewayHooks = NO_HOOKS
) -> AsyncIterator[dict[str, Any]]:
    """Serve in the caller's event loop while the block runs; yield what ``serve`` announces.

    Raises what ``serve`` raises if it cannot start.
    """
    ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    service = asyncio.create_task(
        serve(settings, announce=ready.set_result, stop=stop, hooks=hooks)
    )
    try:
        # a service that fails before it announces would leave `ready` pending for ever
        service.add_done_callback(lambda _: ready.cancel())
        try:
            info = await ready
        except asyncio.CancelledError:
            await service  # raises why it did not start, if it was not this task that was cancelled
            raise
        yield info
    finally:
        stop.set()
        await service


def _engine(
    settings: GatewaySettings, hooks: GatewayHooks, turn_log: AsyncTurnLog
) -> ResilientEngine:
    deadline_s = settings.turn_s + ENGINE_GRACE_S
    client: Engine
    abort = None
    if settings.fixed_engine is not None:
        client = connect_fixed_engine(settings.fixed_engine, deadline_s=deadline_s)
    else:
        client = served = connect_engine(
            settings.engine_url,
            settings.engine_workers,
            deadline_s=deadline_s,
            adapter=settings.adapter,
            version_offset=settings.version_offset,
        )
        abort = served.abort
    # Each of several processes has its part of the maximum in flight, and of what a round trip
    # adds, so that all together grow as one gateway does, and decrease as clients that share a
    # service do (AIMD).
    parts = settings.replica.of if settings.replica else 1
    return ResilientEngine(
        hooks.wrap_engine(client, turn_log),
        attempts=settings.engine_attempts,
        deadline_s=settings.turn_s,
        bucket=TokenBucket(settings.engine_calls_per_s),
        admission=Admission(MAX_ENGINE_CALLS // parts, adaptive=settings.adaptive, gain=1 / parts),
        abort=abort,
        continue_aborted=settings.continue_aborted,
    )


def _server_parsers(settings: GatewaySettings) -> ServerParsers:
    assert settings.tool_call_parser is not None  # a rule of the configuration
    servers = settings.engine_workers or (settings.engine_url,)
    return ServerParsers(
        [HttpEngine(server) for server in servers],
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
    )


def _open_store(settings: GatewaySettings, places: RolloutPlaces | None) -> TurnLog:
    store = RunStore.open(settings.run_dir)
    writer = settings.replica.number if settings.replica else 0
    try:
        store.claim_arrays(settings.store_patience_s, writer=writer)
        if places is not None:
            places.recall(store.sessions().values())
    except BaseException:
        store.close()
        raise
    return store


@asynccontextmanager
async def _listening(server: GatewayServer, settings: GatewaySettings) -> AsyncIterator[str]:
    sock, url = await open_listener(settings)
    http: web.Server = server.make_http_server()
    listener = await asyncio.get_running_loop().create_server(http, sock=sock, backlog=BACKLOG)
    try:
        yield url
    finally:
        listener.close()
        await end_connections(http)


@asynccontextmanager
async def _control_socket(server: GatewayServer) -> AsyncIterator[str]:
    control = ControlSocket(server.serve_listener)
    control.start()
    server.admin_api.control = str(control.path)
    try:
        yield str(control.path)
    finally:
        await control.close()


async def _run(pop_hooks: PopHooks) -> None:
    """Serve until SIGTERM, or until the parent is gone."""
    received = receive_settings()
    hooks = pop_hooks(received)
    settings = GatewaySettings.model_validate(received)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def stop_with_parent() -> None:
        # nobody else would ever stop the gateway of a killed driver, and it holds port and store
        await wait_for_parent_exit()
        stop.set()

    name = f"gateway-{settings.replica.number}" if settings.replica else "gateway"
    watch = asyncio.create_task(stop_with_parent(), name="parent-watch")
    try:
        with install_diagnostics(
            settings.run_dir, name, watchdog_s=settings.watchdog_s, report=logger.warning
        ):
            await serve(settings, announce=_announce_frozen, stop=stop, hooks=hooks)
    finally:
        watch.cancel()


def _announce_frozen(info: dict[str, Any]) -> None:
    """Announce the service, after all that is imported by now was taken from the garbage collector:
    to walk through it again and again would hold up the loop for 0.1 s each time.
    """
    COLLECTOR.freeze()
    announce_service(info)


def main(pop_hooks: PopHooks = lambda settings: NO_HOOKS) -> int:
    """Return the process's exit code; the reason of a failure goes to stderr."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
    )
    sys.setswitchinterval(SWITCH_S)
    import uvloop

    try:
        uvloop.run(_run(pop_hooks))
    except AgentrlError as error:
        with suppress(
            OSError
        ):  # the log's disk may be full; the exit code still names the kind of failure
            print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0

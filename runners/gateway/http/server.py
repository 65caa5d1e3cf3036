"""HTTP: the agents' APIs, the admin API, health.

One handler serves every listener. A listener that belongs to a session (it came out of that
session's sandbox) accepts this session's key only, and no admin request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from aiohttp import web

from conf.sections.gateway import MODEL, GatewayLimitsConfig
from runners.engines.resilient import ResilientEngine
from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.dialects.endpoints import COUNTS, TURNS, Endpoint, find_endpoint
from runners.gateway.http.admin_api import AdminApi, measure
from runners.gateway.http.connections import ClientConnection, ConnectionTable, make_server
from runners.gateway.http.control import BACKLOG
from runners.gateway.http.http_answers import (
    ADMIN,
    GOOGLE_KEY,
    HEALTH,
    answer_safely,
    json_answer,
    key_of,
    path_of,
    read_body,
    refuse_for,
    request_id,
    url_key_of,
    vendor_of,
)
from runners.gateway.refusal import OverLimit, RefusalKind, Refused
from runners.gateway.request_limits import RequestBudget
from runners.gateway.sessions.in_flight import InFlightTurn
from runners.gateway.sessions.registry import SessionEntry, SessionRegistry
from runners.gateway.sessions.session import Session
from runners.system.processes import AgentProcess

logger = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
"""Answers a request of a listener."""
AnswerRequest = Callable[[web.BaseRequest, Session, RequestBudget], Awaitable[web.StreamResponse]]
"""Answers a request of a session; raises Refused."""

_MODELS = re.compile(r"/v1(?:beta)?/models(?:/(?P<name>.+))?")

CLOSE_S = 1.0
"""Requests that are still being answered on a session's listener when the session ends get this
long.
"""


class _EventStream(web.StreamResponse):
    """A stream whose head goes out with its opening, in one packet: aiohttp sends it by itself."""

    _send_headers_immediately = False


class GatewayServer:
    """Answers requests for one registry."""

    def __init__(
        self,
        registry: SessionRegistry,
        engine: ResilientEngine,
        *,
        admin_key: str,
        ping_s: float,
        limits: GatewayLimitsConfig,
        wrap_handler: Callable[[Handler], Handler] = lambda handler: handler,
    ) -> None:
        self.registry = registry
        self._wrap_handler = wrap_handler
        self._engine = engine
        self.admin_api = AdminApi(registry, engine)
        self._admin_key = admin_key.encode()
        self._instance = secrets.token_hex(8)
        """Tells this process from another gateway that answers under its address."""
        self._ping_s = ping_s
        self._limits = limits
        self._client_s = limits.client_s
        """Deadline for a client to send a request, or to take a write."""
        self._known_agents: WeakSet[asyncio.BaseTransport] = WeakSet()
        """Connections that were found to be an agent program's."""
        self._connections = ConnectionTable(client_s=limits.client_s)

    def make_http_server(self, only: SessionEntry | None = None) -> web.Server:
        """Return a protocol factory for a listener; ``only``: the session that it belongs to."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            response = await answer_safely(request, lambda: self._route(request, only))
            self.registry.counts.answers[str(response.status)] += 1
            return response

        budget = only.session.budget if only else None
        return make_server(self._wrap_handler(handle), self._connections, budget)

    async def serve_listener(
        self, key: str, listener: socket.socket, agent: AgentProcess | None = None
    ) -> None:
        """Serve a listening socket for the session of a key, until the session ends; raises
        Refused, or ValueError if the session is finished. ``agent``: serve this program alone.
        """
        entry = self.registry.find_by_key(key)
        if entry.session.finished:
            raise ValueError("its session is finished")
        http = self.make_http_server(only=entry)
        accepting = await asyncio.get_running_loop().create_server(
            http, sock=listener, backlog=BACKLOG
        )

        async def close() -> None:
            accepting.close()
            http.pre_shutdown()  # ends idle keep-alive connections, which shutdown would wait for
            await http.shutdown(timeout=CLOSE_S)
            if agent is not None:
                agent.close()

        if agent is not None:
            entry.add_agent(agent)
        entry.close_callbacks.append(close)

    async def _route(
        self, request: web.BaseRequest, only: SessionEntry | None
    ) -> web.StreamResponse:
        method, path = request.method, path_of(request)
        if path in HEALTH and method in ("GET", "HEAD"):
            return json_answer(
                {"status": "ok", "sessions": len(self.registry), "instance": self._instance}
            )
        if path.startswith(ADMIN) and only is None:
            return await self._admin(request, method, path)
        endpoint = find_endpoint(path, request.query)
        answer = self._find_answer(method, endpoint)
        if answer is None:
            raise Refused(RefusalKind.UNKNOWN, f"no such endpoint: {method} {path}")
        entry = self._find_entry(request, only)
        session = entry.session
        if only is not None and only.agents:
            await self._require_agent(request, only)
        if endpoint.path in TURNS:
            entry.close_admission()
        try:
            with session.budget.request() as budget:
                _connection(request).accept(session.budget)
                response = await answer(request, session, budget)
                if not response.prepared:  # a stream has been sent
                    await self._send(request, response)
                return response
        except (OverLimit, TimeoutError):  # the latter: it does not take what it is sent
            session.budget.over_limit += 1
            raise

    def _find_answer(self, method: str, endpoint: Endpoint) -> AnswerRequest | None:
        """Return what answers a session's requests to an endpoint, None if there is no such one."""
        if endpoint.path in TURNS and method == "POST":
            return partial(self._answer_turn, endpoint)
        if endpoint.path in COUNTS and method == "POST":
            return partial(self._answer_count, endpoint)
        if method == "GET" and _MODELS.fullmatch(endpoint.path):
            return self._answer_models
        return None

    async def _answer_turn(
        self, endpoint: Endpoint, request: web.BaseRequest, session: Session, budget: RequestBudget
    ) -> web.StreamResponse:
        body, counts = await read_body(request, self._limits, budget), self.registry.counts
        counts.request_bytes += sum(map(len, body))
        parsed = endpoint.add_url(await session.parse(endpoint.path, body, request.headers))
        headers = list(request.headers.items())
        if url_key := url_key_of(request):  # the recording hides what stands in such a header
            headers.insert(0, (GOOGLE_KEY, url_key))
        sent = session.hold_wire(path_of(request), headers, body)
        turn = session.start_turn(parsed.request, parsed.builder, sent)
        if parsed.stream:
            return await self._stream(request, parsed, turn)
        with turn.waiting() as outcome:
            await asyncio.wait({outcome})  # not ``await outcome``: see ``waiting``
        response = json_answer(_body(outcome))
        counts.answer_bytes += response.content_length or 0
        return response

    async def _answer_count(
        self, endpoint: Endpoint, request: web.BaseRequest, session: Session, budget: RequestBudget
    ) -> web.StreamResponse:
        body = await read_body(request, self._limits, budget)
        parsed = await session.parse(endpoint.path, body, request.headers)
        return json_answer({COUNTS[endpoint.path]: await session.count_tokens(parsed)})

    async def _answer_models(
        self, request: web.BaseRequest, session: Session, budget: RequestBudget
    ) -> web.StreamResponse:
        found = _MODELS.fullmatch(path_of(request))
        name = found["name"] if found else None
        vendor = vendor_of(request)
        return json_answer(vendor.describe_model(name) if name else vendor.list_models(MODEL))

    def _find_entry(self, request: web.BaseRequest, only: SessionEntry | None) -> SessionEntry:
        entry = self.registry.find_by_key(key_of(request.headers) or url_key_of(request))
        if only is not None and entry is not only:
            raise Refused(
                RefusalKind.UNAUTHENTICATED, "this API key belongs to another sandbox's session"
            )
        return entry

    async def _require_agent(self, request: web.BaseRequest, only: SessionEntry) -> None:
        """Raise Refused unless the connection is one of the session's agent program.

        The commands that the program starts may have found its key.
        """
        transport = request.transport
        if transport is None or transport in self._known_agents:
            return
        ends = [transport.get_extra_info(name)[:2] for name in ("peername", "sockname")]
        # The latest is the command that runs now; others of this session are rarely alive.
        for agent in reversed(only.agents):
            if await agent.owns(*ends):
                self._known_agents.add(transport)
                return
        if not only.refused_command:  # once: a command can come again thousands of times a second
            logger.warning("session %s: a command in its sandbox was refused", only.session.id)
        only.refused_command = True
        raise Refused(
            RefusalKind.FORBIDDEN,
            "this address serves the agent program alone, not the commands that it starts",
        )

    async def _send(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Send a whole answer; aiohttp, which would do it, has no deadline for the client."""
        async with asyncio.timeout(self._client_s):
            await response.prepare(request)
            await response.write_eof()

    async def _stream(
        self,
        request: web.BaseRequest,
        parsed: ParsedRequest,
        turn: InFlightTurn,
    ) -> web.StreamResponse:
        """Stream an answer: the opening at once, pings while the engine works, then everything.

        The content is not streamed as it is sampled: it is framed when the turn is durable, so that
        no agent acts on tokens that a crash could lose. Once the headers are out a failure can only
        be framed as the dialect's error event.
        """
        response = _EventStream(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                **request_id(),
            }
        )
        builder = parsed.builder
        with turn.waiting() as outcome:
            if not await turn.wait_until_placed():  # refused before anything was sent
                return json_answer(_body(outcome))
            opening = builder.open_stream(parsed.request, turn.message_id, turn.prompt_tokens)
            async with asyncio.timeout(self._client_s):
                await response.prepare(request)
                await response.write(opening)
            while not (await asyncio.wait({outcome}, timeout=self._ping_s))[0]:
                # a write to a client that is gone raises here and so ends the waiting
                async with asyncio.timeout(self._client_s):
                    await response.write(builder.PING)
        try:
            frames = builder.complete_stream(_body(outcome))
        except Exception as error:
            frames = builder.fail_stream(refuse_for(error), parsed.request, turn.message_id)
        self.registry.counts.answer_bytes += len(opening) + len(frames)
        async with asyncio.timeout(self._client_s):
            await response.write_eof(frames)
        return response

    def read_metrics(self) -> dict[str, Any]:
        """Return what this process counts."""
        return measure(self.registry, self._engine)

    async def _admin(self, request: web.BaseRequest, method: str, path: str) -> web.StreamResponse:
        # in constant time, so that the duration of the comparison reveals nothing of the key
        # surrogateescape: aiohttp decodes headers that are no UTF-8 in this way
        key = key_of(request.headers).encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(key, self._admin_key):
            raise Refused(RefusalKind.UNAUTHENTICATED, "wrong admin key")
        _connection(request).accept(None)
        body = b"".join(await read_body(request, self._limits))
        return json_answer(
            await self.admin_api.answer(method, path.removeprefix("/admin"), body, request.headers)
        )


def _body(outcome: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    if outcome.cancelled():
        raise Refused(RefusalKind.FORBIDDEN, "the turn was aborted: its session was finished")
    return outcome.result()


def _connection(request: web.BaseRequest) -> ClientConnection:
    connection = request.protocol
    assert isinstance(connection, ClientConnection)  # every listener's server makes these
    return connection

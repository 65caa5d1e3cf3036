"""HTTP: the agents' APIs, the admin API, health.

One handler serves every listener. A listener that belongs to a session (it came out of that
session's sandbox) accepts this session's key only, and no admin request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import orjson
from aiohttp import web

from conf.errors import AgentrlError
from conf.sections.gateway import GatewayLimitsConfig
from runners.engines.resilient import ResilientEngine
from runners.gateway.admin_api import AdminApi
from runners.gateway.connections import ClientConnection, ConnectionTable, make_server
from runners.gateway.control import BACKLOG
from runners.gateway.dialects import anthropic, openai
from runners.gateway.dialects.contract import ParsedRequest, Vendor
from runners.gateway.dialects.endpoints import COUNT, TURNS
from runners.gateway.in_flight import InFlightTurn
from runners.gateway.program_environment import MODEL
from runners.gateway.refusal import OverLimit, RefusalKind, Refused
from runners.gateway.registry import SessionEntry, SessionRegistry
from runners.gateway.request_limits import RequestBudget, check_body_size
from runners.gateway.session import Session
from runners.sandboxes.agent_process import AgentProcess

logger = logging.getLogger(__name__)

AnswerRequest = Callable[[web.BaseRequest, Session, RequestBudget], Awaitable[web.StreamResponse]]
"""Answers a request of a session; raises Refused."""

OPENAI_ENDPOINTS = ("/v1/chat/completions", "/v1/responses")

CLOSE_S = 1.0
"""Requests that are still being answered on a session's listener when the session ends get this
long.
"""


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
    ) -> None:
        self.registry = registry
        self._admin_api = AdminApi(registry, engine)
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
            return await self._handle(request, only)

        return make_server(handle, self._connections, only.session.budget if only else None)

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

    async def _handle(
        self, request: web.BaseRequest, only: SessionEntry | None
    ) -> web.StreamResponse:
        """Answer a request; any failure of it becomes an error envelope."""
        try:
            return await self._route(request, only)
        except (ConnectionError, TimeoutError) as error:
            # The client is gone, or does not take what it is sent. The connection is aborted, not
            # closed: a close would wait until the client has taken the buffered rest.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client left") from error
        except Exception as error:
            return _error(_vendor(request), _refuse_for(error))

    async def _route(
        self, request: web.BaseRequest, only: SessionEntry | None
    ) -> web.StreamResponse:
        method, path = request.method, request.path.rstrip("/") or "/"
        if path in ("/", "/health", "/api/hello") and method in ("GET", "HEAD"):
            return _json(
                {"status": "ok", "sessions": len(self.registry), "instance": self._instance}
            )
        if path.startswith("/admin/") and only is None:
            return await self._admin(request, method, path)
        answer = self._find_answer(method, path)
        if answer is None:
            raise Refused(RefusalKind.UNKNOWN, f"no such endpoint: {method} {path}")
        entry = self._find_entry(request, only)
        session = entry.session
        if only is not None and only.agents:
            await self._require_agent(request, only)
        if path in TURNS:
            entry.close_admission()
        try:
            with session.budget.request() as budget:
                _connection(request).accept(session.budget)
                response = await answer(request, session, budget)
                await self._send(request, response)
                return response
        except (OverLimit, TimeoutError):  # the latter: it does not take what it is sent
            session.budget.over_limit += 1
            raise

    def _find_answer(self, method: str, path: str) -> AnswerRequest | None:
        """Return what answers a session's requests to an endpoint, None if there is no such one."""
        if path in TURNS and method == "POST":
            return partial(self._answer_turn, path)
        if path == COUNT and method == "POST":
            return self._answer_count
        if path == "/v1/models" and method == "GET":
            return self._answer_models
        if path.startswith("/v1/models/") and method == "GET":
            return self._answer_models
        return None

    async def _answer_turn(
        self, path: str, request: web.BaseRequest, session: Session, budget: RequestBudget
    ) -> web.StreamResponse:
        parsed = await session.parse(path, await self._read(request, budget), request.headers)
        turn = session.start_turn(parsed.request, parsed.builder)
        if parsed.stream:
            return await self._stream(request, parsed, turn)
        with turn.waiting() as outcome:
            await asyncio.wait({outcome})  # not ``await outcome``: see ``waiting``
        return _json(_body(outcome))

    async def _answer_count(
        self, request: web.BaseRequest, session: Session, budget: RequestBudget
    ) -> web.StreamResponse:
        parsed = await session.parse(COUNT, await self._read(request, budget), request.headers)
        return _json({"input_tokens": await session.count_tokens(parsed)})

    async def _answer_models(
        self, request: web.BaseRequest, session: Session, budget: RequestBudget
    ) -> web.StreamResponse:
        name = request.path.rstrip("/").removeprefix("/v1/models").removeprefix("/")
        vendor = _vendor(request)
        return _json(vendor.describe_model(name) if name else vendor.list_models(MODEL))

    def _find_entry(self, request: web.BaseRequest, only: SessionEntry | None) -> SessionEntry:
        entry = self.registry.find_by_key(_key(request.headers))
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
        logger.warning("session %s: a command in its sandbox was refused", only.session.id)
        raise Refused(
            RefusalKind.FORBIDDEN,
            "this address serves the agent program alone, not the commands that it starts",
        )

    async def _send(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Send a whole answer; aiohttp, which would do it, has no deadline for the client."""
        async with asyncio.timeout(self._client_s):
            await response.prepare(request)
            await response.write_eof()

    async def _read(
        self, request: web.BaseRequest, budget: RequestBudget | None = None
    ) -> list[bytes]:
        """Return the body in the pieces in which it came, since one of megabytes costs milliseconds
        to join; raises Refused. ``budget`` counts its bytes while it comes.
        """
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise Refused(
                RefusalKind.INVALID,
                f"content-encoding: {encoding!r} is not served: send the body uncompressed",
            )
        check_body_size(request.content_length or 0, self._limits)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._client_s):
                while chunk := await request.content.readany():
                    size += len(chunk)
                    check_body_size(size, self._limits)
                    if budget is not None:
                        budget.grow(size)
                    chunks.append(chunk)
        except TimeoutError:
            raise OverLimit(
                RefusalKind.INVALID, f"the request body did not arrive within {self._client_s:g} s"
            ) from None
        return chunks

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
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                **_request_id(),
            }
        )
        builder = parsed.builder
        with turn.waiting() as outcome:
            if not await turn.wait_until_placed():  # refused before anything was sent
                return _json(_body(outcome))
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
            frames = builder.fail_stream(_refuse_for(error), parsed.request, turn.message_id)
        async with asyncio.timeout(self._client_s):
            await response.write_eof(frames)
        return response

    async def _admin(self, request: web.BaseRequest, method: str, path: str) -> web.StreamResponse:
        # in constant time, so that the duration of the comparison reveals nothing of the key
        # surrogateescape: aiohttp decodes headers that are no UTF-8 in this way
        key = _key(request.headers).encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(key, self._admin_key):
            raise Refused(RefusalKind.UNAUTHENTICATED, "wrong admin key")
        _connection(request).accept(None)
        body = b"".join(await self._read(request))
        return _json(
            await self._admin_api.answer(method, path.removeprefix("/admin"), body, request.headers)
        )


def _refuse_for(error: Exception) -> Refused:
    """Return the refusal that answers a request that met an error; unforeseen ones are logged."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, web.RequestPayloadError):
        return Refused(RefusalKind.INVALID, f"the request body cannot be read: {error}")
    if isinstance(error, AgentrlError):
        logger.error("a request failed: %s", error)
        return Refused(RefusalKind.BROKEN, str(error))
    logger.error("a request failed", exc_info=error)
    return Refused(RefusalKind.BROKEN, "the gateway failed on this request; its log says why")


def _body(outcome: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    if outcome.cancelled():
        raise Refused(RefusalKind.FORBIDDEN, "the turn was aborted: its session was finished")
    return outcome.result()


def _key(headers: Mapping[str, str]) -> str:
    """Return the bearer token or x-api-key, "" if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _vendor(request: web.BaseRequest) -> Vendor:
    """Return the vendor of a client's API: by the endpoint, or by Anthropic's header."""
    path = request.path
    if path.startswith("/v1/models") and "anthropic-version" not in request.headers:
        return openai
    return openai if path.startswith(OPENAI_ENDPOINTS) else anthropic


def _request_id() -> dict[str, str]:
    """Return the headers that name an answer, Anthropic's and OpenAI's."""
    name = f"req_{secrets.token_hex(12)}"
    return {"request-id": name, "x-request-id": name}


def _connection(request: web.BaseRequest) -> ClientConnection:
    connection = request.protocol
    assert isinstance(connection, ClientConnection)  # every listener's server makes these
    return connection


def _error(vendor: Vendor, refused: Refused) -> web.Response:
    status, body = vendor.error_response(refused)
    response = _json(body, status)
    if refused.retry_after_s is not None:
        response.headers["retry-after"] = str(refused.retry_after_s)
    return response


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
        status=status,
        content_type="application/json",
        headers=_request_id(),
    )

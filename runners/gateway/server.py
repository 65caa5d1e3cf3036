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
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from conf.errors import AgentrlError
from runners.engines.resilient import ResilientEngine
from runners.gateway.control import BACKLOG
from runners.gateway.dialects import (
    anthropic,
    anthropic_reply,
    openai,
    openai_chat,
    openai_responses,
)
from runners.gateway.dialects.attribution import read_claude_code
from runners.gateway.dialects.body import parse_body
from runners.gateway.dialects.contract import ParsedRequest, ParseRequest, Vendor
from runners.gateway.in_flight import InFlightTurn
from runners.gateway.refusal import RefusalKind, Refused
from runners.gateway.registry import FinishRequest, SessionEntry, SessionRegistry, SessionRequest
from runners.gateway.session import Session

logger = logging.getLogger(__name__)

BODY_BYTES = 32 << 20
"""Anthropic's own limit."""

HEADER_BYTES = 64 << 10
"""Of one header: Codex sends the metadata of its turn in one."""

PARSERS: dict[str, ParseRequest] = {
    "/v1/messages": anthropic.parse_request,
    "/v1/chat/completions": openai_chat.parse_request,
    "/v1/responses": openai_responses.parse_request,
}
"""By the endpoint that takes a turn."""

OPENAI_ENDPOINTS = ("/v1/chat/completions", "/v1/responses")

MODEL = "policy"
"""The one name that ``GET /v1/models`` lists; a request may name any other."""

IDEMPOTENCY = "idempotency-key"
"""Header: two requests with the same key create one session (IETF
draft-ietf-httpapi-idempotency-key-header).
"""


CLOSE_S = 1.0
"""Requests that are still being answered on a session's listener when the session ends get this
long.
"""


class PauseRequest(BaseModel):
    """Body of ``POST /admin/pause``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    deadline_s: NonNegativeFloat
    """Time for the generations in flight to finish."""


class GatewayServer:
    """Answers requests for one registry."""

    def __init__(
        self,
        registry: SessionRegistry,
        engine: ResilientEngine,
        *,
        admin_key: str,
        ping_s: float,
        io_s: float,
    ) -> None:
        self.registry = registry
        self._engine = engine
        self._admin_key = admin_key.encode()
        self._instance = secrets.token_hex(8)
        """Tells this process from another gateway that answers under its address."""
        self._ping_s = ping_s
        self._io_s = io_s
        """Deadline for a client to send its body, or to take a write."""

    def make_http_server(self, only: SessionEntry | None = None) -> web.Server:
        """Return a protocol factory for a listener; ``only``: the session that it belongs to."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(request, only)

        return web.Server(
            handle,
            request_factory=partial(
                web.BaseRequest, loop=asyncio.get_running_loop(), client_max_size=BODY_BYTES
            ),
            # off by default in aiohttp; with it a client that disconnects aborts its generation
            handler_cancellation=True,
            access_log=None,
            max_field_size=HEADER_BYTES,
        )

    async def serve_listener(self, key: str, listener: socket.socket) -> None:
        """Serve a listening socket for the session of a key, until the session ends; raises
        Refused, or ValueError if the session is finished.
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
            status, body = _vendor(request).error_response(_refuse_for(error))
            return _json(body, status)

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
        if path in PARSERS and method == "POST":
            session = self._session(request, only)
            parsed = PARSERS[path](await self._read(request), request.headers)
            turn = session.start_turn(parsed.request, parsed.builder)
            if parsed.stream:
                return await self._stream(request, parsed, turn)
            with turn.waiting() as outcome:
                await asyncio.wait({outcome})  # not ``await outcome``: see ``waiting``
            return _json(_body(outcome))
        if path == "/v1/messages/count_tokens" and method == "POST":
            session = self._session(request, only)
            body = parse_body(anthropic.CountRequest, await self._read(request))
            counted = anthropic.to_turn_request(body, read_claude_code(request.headers))
            return _json({"input_tokens": session.count_tokens(counted, anthropic_reply)})
        if path == "/v1/models" and method == "GET":
            self._session(request, only)
            return _json(_vendor(request).list_models(MODEL))
        if path.startswith("/v1/models/") and method == "GET":
            self._session(request, only)
            return _json(_vendor(request).describe_model(path.removeprefix("/v1/models/")))
        raise Refused(RefusalKind.UNKNOWN, f"no such endpoint: {method} {path}")

    def _session(self, request: web.BaseRequest, only: SessionEntry | None) -> Session:
        entry = self.registry.find_by_key(_key(request.headers))
        if only is not None and entry is not only:
            raise Refused(
                RefusalKind.UNAUTHENTICATED, "this API key belongs to another sandbox's session"
            )
        return entry.session

    async def _read(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(self._io_s):
                return await request.read()
        except TimeoutError:
            raise Refused(
                RefusalKind.INVALID, f"the request body did not arrive within {self._io_s:g} s"
            ) from None

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
            opening = builder.open_stream(parsed.request, turn.message_id, turn.prompt_tokens)
            async with asyncio.timeout(self._io_s):
                await response.prepare(request)
                await response.write(opening)
            while not (await asyncio.wait({outcome}, timeout=self._ping_s))[0]:
                # a write to a client that is gone raises here and so ends the waiting
                async with asyncio.timeout(self._io_s):
                    await response.write(builder.PING)
        try:
            frames = builder.complete_stream(_body(outcome))
        except Exception as error:
            frames = builder.fail_stream(_refuse_for(error), parsed.request, turn.message_id)
        async with asyncio.timeout(self._io_s):
            await response.write_eof(frames)
        return response

    async def _admin(self, request: web.BaseRequest, method: str, path: str) -> web.StreamResponse:
        # in constant time, so that the duration of the comparison reveals nothing of the key
        if not hmac.compare_digest(_key(request.headers).encode(), self._admin_key):
            raise Refused(RefusalKind.UNAUTHENTICATED, "wrong admin key")
        match (method, path.removeprefix("/admin/").split("/")):
            case ("POST", ["pause"]):
                pause = parse_body(PauseRequest, await self._read(request) or b"{}")
                return _json(asdict(await self._engine.pause(pause.deadline_s)))
            case ("POST", ["resume"]):
                self._engine.resume()
                return _json({})
            case ("POST", ["sessions"]):
                wanted = parse_body(SessionRequest, await self._read(request) or b"{}")
                entry = await self.registry.create(wanted, request.headers.get(IDEMPOTENCY, ""))
                return _json({"session_id": entry.session.id, "api_key": entry.key})
            case ("GET", ["sessions", session_id]):
                return _json(self.registry.find_by_id(session_id).session.stats())
            case ("DELETE", ["sessions", session_id]):
                await self.registry.delete(session_id)
                return _json({"session_id": session_id, "deleted": True})
            case ("POST", ["sessions", session_id, "finish"]):
                ending = parse_body(FinishRequest, await self._read(request) or b"{}")
                return _json(await self.registry.finish(session_id, ending))
        raise Refused(RefusalKind.UNKNOWN, f"no such endpoint: {method} {path}")


def _refuse_for(error: Exception) -> Refused:
    """Return the refusal that answers a request that met an error; unforeseen ones are logged."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Refused(RefusalKind.TOO_LARGE, f"the request body exceeds {BODY_BYTES} bytes")
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


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
        status=status,
        content_type="application/json",
        headers=_request_id(),
    )

"""HTTP: the agents' APIs, the admin API, health.

One handler serves every listener. A listener that belongs to a session (it came out of that
session's sandbox) accepts this session's key only, and no admin request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler
from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from conf.errors import AgentrlError
from runners.engines.resilient import ResilientEngine
from runners.gateway.dialects import anthropic, anthropic_reply, openai_chat, openai_responses
from runners.gateway.dialects.body import parse_body
from runners.gateway.dialects.contract import Dialect, ParsedRequest, StreamFraming
from runners.gateway.dialects.hints import read_claude_code
from runners.gateway.in_flight import InFlightTurn
from runners.gateway.refusal import RefusalKind, Refused
from runners.gateway.registry import FinishRequest, SessionEntry, SessionRegistry, SessionRequest
from runners.gateway.session import Session

logger = logging.getLogger(__name__)

BODY_BYTES = 32 << 20
"""Anthropic's own limit."""

HEADER_BYTES = 64 << 10
"""Of one header: Codex sends the metadata of its turn in one."""

DIALECTS: dict[str, Dialect] = {
    "/v1/messages": anthropic,
    "/v1/chat/completions": openai_chat,
    "/v1/responses": openai_responses,
}
"""By the endpoint that takes a turn."""

MODEL = "policy"
"""What ``GET /v1/models`` lists; a request may name any other."""

IDEMPOTENCY = "idempotency-key"
"""Header: a request that creates something, sent again with the same key, creates it once (IETF
draft-ietf-httpapi-idempotency-key-header).
"""


class PauseRequest(BaseModel):
    """Body of ``POST /admin/pause``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    deadline_s: NonNegativeFloat
    """What generations in flight get to finish."""


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
        self._ping_s = ping_s
        self._io_s = io_s
        """Deadline for a client to send its body, or to take what it is sent."""

    def http(self, only: SessionEntry | None = None) -> web.Server:
        """Return a protocol factory for a listener; ``only``: the session it belongs to."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(request, only)

        loop = asyncio.get_running_loop()

        def make_request(
            message: RawRequestMessage,
            payload: StreamReader,
            protocol: RequestHandler,
            writer: AbstractStreamWriter,
            task: asyncio.Task[None],
        ) -> web.BaseRequest:
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES
            )

        return web.Server(
            handle,
            request_factory=make_request,
            handler_cancellation=True,  # a client that leaves aborts its generation
            access_log=None,
            max_field_size=HEADER_BYTES,
        )

    async def _handle(
        self, request: web.BaseRequest, only: SessionEntry | None
    ) -> web.StreamResponse:
        """Answer a request; whatever fails in it becomes an error envelope."""
        try:
            return await self._route(request, only)
        except (
            ConnectionError,
            TimeoutError,
        ) as error:  # the client is gone, or takes nothing any more
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client left") from error
        except Exception as error:
            status, body = _dialect(request).refusal(_refusal(error))
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
        if path in DIALECTS and method == "POST":
            session = self._session(request, only)
            asked = DIALECTS[path].read(await self._read(request), request.headers)
            return await self._turn(request, asked, session.start_turn(asked.request, asked.voice))
        if path == "/v1/messages/count_tokens" and method == "POST":
            session = self._session(request, only)
            body = parse_body(anthropic.CountRequest, await self._read(request))
            asked_by = read_claude_code(request.headers)
            tokens = session.count_tokens(anthropic.turn_request(body, asked_by), anthropic_reply)
            return _json({"input_tokens": tokens})
        if path == "/v1/models" and method == "GET":
            self._session(request, only)
            return _json(_dialect(request).models(MODEL))
        if path.startswith("/v1/models/") and method == "GET":
            self._session(request, only)
            return _json(_dialect(request).model(path.removeprefix("/v1/models/")))
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

    async def _turn(
        self, request: web.BaseRequest, asked: ParsedRequest, flight: InFlightTurn
    ) -> web.StreamResponse:
        if asked.framing is not None:
            return await self._stream(request, asked, asked.framing, flight)
        with flight.waiting() as outcome:
            await asyncio.wait({outcome})
        return _json(_answer(outcome))

    async def _stream(
        self,
        request: web.BaseRequest,
        asked: ParsedRequest,
        framing: StreamFraming,
        flight: InFlightTurn,
    ) -> web.StreamResponse:
        """Stream an answer; once the headers are out, a failure ends the stream in the dialect's
        words.
        """
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                **_request_id(),
            }
        )
        with flight.waiting() as outcome:
            opening = framing.opening(asked.request, flight.message_id, flight.prompt_tokens)
            async with asyncio.timeout(self._io_s):
                await response.prepare(request)
                await response.write(opening)
            while not (await asyncio.wait({outcome}, timeout=self._ping_s))[0]:
                async with asyncio.timeout(self._io_s):
                    await response.write(framing.PING)
        try:
            frames = framing.rest(_answer(outcome))
        except Exception as error:
            frames = framing.error(_refusal(error), asked.request, flight.message_id)
        async with asyncio.timeout(self._io_s):
            await response.write_eof(frames)
        return response

    async def _admin(self, request: web.BaseRequest, method: str, path: str) -> web.StreamResponse:
        if not hmac.compare_digest(_key(request.headers).encode(), self._admin_key):
            raise Refused(RefusalKind.UNAUTHENTICATED, "wrong admin key")
        match (method, path.removeprefix("/admin/").split("/")):
            case ("POST", ["pause"]):
                wanted = parse_body(PauseRequest, await self._read(request) or b"{}")
                return _json(asdict(await self._engine.pause(wanted.deadline_s)))
            case ("POST", ["resume"]):
                self._engine.resume()
                return _json({})
            case ("POST", ["sessions"]):
                wish = parse_body(SessionRequest, await self._read(request) or b"{}")
                entry = await self.registry.create(wish, request.headers.get(IDEMPOTENCY, ""))
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


def _refusal(error: Exception) -> Refused:
    """Turn whatever a request met into what its client is told; what nobody foresaw goes to the
    log.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Refused(RefusalKind.TOO_LARGE, f"the request body exceeds {BODY_BYTES} bytes")
    if isinstance(error, AgentrlError):
        logger.error("a request failed: %s", error)
        return Refused(RefusalKind.BROKEN, str(error))
    logger.error("a request failed", exc_info=error)
    return Refused(RefusalKind.BROKEN, "the gateway failed on this request; its log says why")


def _answer(outcome: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    if outcome.cancelled():
        raise Refused(RefusalKind.FORBIDDEN, "the turn was aborted: its session was finished")
    return outcome.result()


def _key(headers: Mapping[str, str]) -> str:
    """Return the bearer token or x-api-key, "" if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _dialect(request: web.BaseRequest) -> Dialect:
    """Return the dialect that a client speaks: by what it asks for, or by Anthropic's header."""
    path = request.path
    for endpoint, dialect in DIALECTS.items():
        if path.startswith(endpoint):
            return dialect
    if path.startswith("/v1/models") and "anthropic-version" not in request.headers:
        return openai_chat
    return anthropic


def _request_id() -> dict[str, str]:
    """Name an answer as each vendor does."""
    name = f"req_{secrets.token_hex(12)}"
    return {"request-id": name, "x-request-id": name}


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
        status=status,
        content_type="application/json",
        headers=_request_id(),
    )

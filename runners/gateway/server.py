"""HTTP: the agents' Messages API, the admin API, health.

One handler serves every listener. A listener that belongs to a session (it came out of that
session's sandbox) accepts this session's key only, and no admin request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from conf.errors import AgentrlError
from runners.gateway import anthropic, sse
from runners.gateway.conversation import TurnRequest
from runners.gateway.flight import Flight
from runners.gateway.refusal import Refused, Why
from runners.gateway.registry import Entry, Finish, NewSession, Registry
from runners.gateway.session import Session

logger = logging.getLogger(__name__)

BODY_BYTES = 32 << 20
"""Anthropic's own limit."""

MODEL_CREATED = "2026-01-01T00:00:00Z"
"""Clients want a date; a policy in training has none."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class GatewayServer:
    """Answers requests for one registry."""

    def __init__(self, registry: Registry, *, admin_key: str, ping_s: float, io_s: float) -> None:
        self.registry = registry
        self._admin_key = admin_key.encode()
        self._ping_s = ping_s
        self._io_s = io_s
        """Deadline for a client to send its body, or to take what it is sent."""

    def http(self, only: Entry | None = None) -> web.Server:
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
        )

    async def _handle(self, request: web.BaseRequest, only: Entry | None) -> web.StreamResponse:
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
            refused = _refusal(error)
            return _json(anthropic.error_body(refused), refused.status)

    async def _route(self, request: web.BaseRequest, only: Entry | None) -> web.StreamResponse:
        method, path = request.method, request.path.rstrip("/") or "/"
        if path in ("/", "/health", "/api/hello") and method in ("GET", "HEAD"):
            return _json({"status": "ok", "sessions": len(self.registry)})
        if path.startswith("/admin/") and only is None:
            return await self._admin(request, method, path)
        if path == "/v1/messages" and method == "POST":
            return await self._messages(request, self._session(request, only))
        if path == "/v1/messages/count_tokens" and method == "POST":
            session = self._session(request, only)
            body = anthropic.parse(anthropic.CountRequest, await self._read(request))
            tokens = session.count_tokens(anthropic.turn_request(body), anthropic)
            return _json({"input_tokens": tokens})
        if path == "/v1/models" and method == "GET":
            self._session(request, only)
            model = _model("policy")
            ends = {"first_id": model["id"], "last_id": model["id"], "has_more": False}
            return _json({"data": [model], **ends})
        if path.startswith("/v1/models/") and method == "GET":
            self._session(request, only)
            return _json(_model(path.removeprefix("/v1/models/")))
        raise Refused(Why.UNKNOWN, f"no such endpoint: {method} {path}")

    def _session(self, request: web.BaseRequest, only: Entry | None) -> Session:
        entry = self.registry.with_key(_key(request.headers))
        if only is not None and entry is not only:
            raise Refused(Why.UNAUTHENTICATED, "this API key belongs to another sandbox's session")
        return entry.session

    async def _read(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(self._io_s):
                return await request.read()
        except TimeoutError:
            raise Refused(
                Why.INVALID, f"the request body did not arrive within {self._io_s:g} s"
            ) from None

    async def _messages(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        body = anthropic.parse(anthropic.MessagesRequest, await self._read(request))
        asked = anthropic.turn_request(body)
        flight = session.ask(asked, anthropic)
        if body.stream:
            return await self._stream(request, asked, flight)
        with flight.waiting() as outcome:
            await asyncio.wait({outcome})
        return _json(_answer(outcome))

    async def _stream(
        self, request: web.BaseRequest, asked: TurnRequest, flight: Flight
    ) -> web.StreamResponse:
        """Stream an answer; once the headers are out, failures become an ``error`` event."""
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "request-id": _request_id(),
            }
        )
        with flight.waiting() as outcome:
            opening = anthropic.opening(asked, flight.message_id, flight.prompt_tokens)
            async with asyncio.timeout(self._io_s):
                await response.prepare(request)
                await response.write(sse.start(opening))
            while not (await asyncio.wait({outcome}, timeout=self._ping_s))[0]:
                async with asyncio.timeout(self._io_s):
                    await response.write(sse.PING)
        try:
            frames = sse.rest(_answer(outcome))
        except Exception as error:
            frames = sse.error(anthropic.error_body(_refusal(error)))
        async with asyncio.timeout(self._io_s):
            await response.write_eof(frames)
        return response

    async def _admin(self, request: web.BaseRequest, method: str, path: str) -> web.StreamResponse:
        if not hmac.compare_digest(_key(request.headers).encode(), self._admin_key):
            raise Refused(Why.UNAUTHENTICATED, "wrong admin key")
        match (method, path.removeprefix("/admin/").split("/")):
            case ("POST", ["sessions"]):
                wish = anthropic.parse(NewSession, await self._read(request) or b"{}")
                entry = await self.registry.create(wish)
                return _json({"session_id": entry.session.id, "api_key": entry.key})
            case ("GET", ["sessions", session_id]):
                return _json(self.registry.with_id(session_id).session.stats())
            case ("DELETE", ["sessions", session_id]):
                await self.registry.delete(session_id)
                return _json({"session_id": session_id, "deleted": True})
            case ("POST", ["sessions", session_id, "finish"]):
                wanted = anthropic.parse(Finish, await self._read(request) or b"{}")
                return _json(await self.registry.finish(session_id, wanted.reward))
        raise Refused(Why.UNKNOWN, f"no such endpoint: {method} {path}")


def _refusal(error: Exception) -> Refused:
    """Turn whatever a request met into what its client is told; what nobody foresaw goes to the
    log.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Refused(Why.TOO_LARGE, f"the request body exceeds {BODY_BYTES} bytes")
    if isinstance(error, AgentrlError):
        logger.error("a request failed: %s", error)
        return Refused(Why.BROKEN, str(error))
    logger.error("a request failed", exc_info=error)
    return Refused(Why.BROKEN, "the gateway failed on this request; its log says why")


def _answer(outcome: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    if outcome.cancelled():
        raise Refused(Why.FORBIDDEN, "the turn was aborted: its session was finished")
    return outcome.result()


def _key(headers: Mapping[str, str]) -> str:
    """Return the bearer token or x-api-key, "" if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _model(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": MODEL_CREATED}


def _request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
        status=status,
        content_type="application/json",
        headers={"request-id": _request_id()},
    )

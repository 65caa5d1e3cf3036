"""Answers of the front itself: health, the admin API for all sessions, and requests that came to it
on a connection whose first request was one of these.

The replicas answer everything about one session; the front knows where each session is.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from http import HTTPStatus

import orjson
from aiohttp import web

from conf.sections.gateway import GatewayLimitsConfig
from runners.gateway.admin_bodies import SessionRequest
from runners.gateway.admin_routes import IDEMPOTENCY, PLACE
from runners.gateway.connections import ClientConnection, ConnectionTable, make_server
from runners.gateway.dialects.body import parse_body
from runners.gateway.http_answers import (
    ADMIN,
    HEALTH,
    answer_safely,
    json_answer,
    key_of,
    path_of,
    read_body,
    request_id,
)
from runners.gateway.refusal import RefusalKind, Refused
from runners.gateway.registry import make_session_id
from runners.gateway.replicas.forwarding import Forwarder
from runners.gateway.replicas.replica_set import PAUSE, RESUME, Replica, ReplicaSet
from runners.gateway.replicas.session_key import replica_of
from runners.gateway.session_rollouts import RolloutPlaces

SESSIONS = f"{ADMIN}sessions"


class FrontServer:
    """Answers requests for the replicas of one gateway."""

    def __init__(
        self,
        replicas: ReplicaSet,
        forwarder: Forwarder,
        *,
        admin_key: str,
        limits: GatewayLimitsConfig,
        places: RolloutPlaces | None,
    ) -> None:
        """``places``: of the sessions' rollouts; None: a campaign's driver keeps them."""
        self._replicas = replicas
        self._forwarder = forwarder
        self._admin_key = admin_key.encode()
        self._limits = limits
        self._places = places
        self._instance = secrets.token_hex(8)
        self._connections = ConnectionTable(client_s=limits.client_s)

    def make_http_server(self) -> web.Server:
        """Return a protocol factory for the front's own connections."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await answer_safely(request, lambda: self._route(request))

        return make_server(handle, self._connections, None)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        method, path = request.method, path_of(request)
        if path in HEALTH and method in ("GET", "HEAD"):
            live = sum(len(replica.sessions) for replica in self._replicas.all)
            return json_answer({"status": "ok", "sessions": live, "instance": self._instance})
        if path.startswith(ADMIN):
            return await self._admin(request, method, path)
        return await self._forward(
            request, self._replicas.find(replica_of(key_of(request.headers)))
        )

    async def _admin(self, request: web.BaseRequest, method: str, path: str) -> web.StreamResponse:
        # in constant time, see ``GatewayServer._admin``
        key = key_of(request.headers).encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(key, self._admin_key):
            raise Refused(RefusalKind.UNAUTHENTICATED, "wrong admin key")
        connection = request.protocol
        assert isinstance(connection, ClientConnection)  # made by ``make_http_server``
        connection.accept(None)
        if method == "POST" and path == SESSIONS:
            return await self._create(request)
        if method == "POST" and path in (PAUSE, RESUME):
            body = b"".join(await read_body(request, self._limits))
            return _add_up(await self._call_all(path, body))
        session_id = path.removeprefix(f"{SESSIONS}/").partition("/")[0]
        replica = next((each for each in self._replicas.all if session_id in each.sessions), None)
        # of no session, or of one that nobody has: any replica says what is right
        response = await self._forward(request, replica or self._replicas.find(None))
        if replica is not None and method == "DELETE" and response.status in (200, 404):
            replica.forget_session(session_id)
        elif replica is not None and path.endswith("/finish") and response.status == 200:
            replica.places.pop(session_id, None)
        return response

    async def _create(self, request: web.BaseRequest) -> web.StreamResponse:
        """Create a session at the replica with the fewest, or where an earlier try may have."""
        body = b"".join(await read_body(request, self._limits))
        wanted = parse_body(SessionRequest, body or b"{}")
        once = request.headers.get(IDEMPOTENCY, "")
        headers = {IDEMPOTENCY: once} if once else {}
        earlier = next((each for each in self._replicas.all if once in each.creations), None)
        if earlier is not None:
            replica, session_id = earlier, earlier.creations[once]
        else:
            replica = min(self._replicas.live(), key=lambda each: len(each.sessions))
            session_id = wanted.session_id or make_session_id()
            if any(session_id in each.sessions for each in self._replicas.all):
                raise Refused(RefusalKind.CONFLICT, f"session {session_id!r} exists already")
            if self._places is not None:
                place = self._places.take(wanted.task or session_id)
                headers[PLACE], replica.places[session_id] = place.to_text(), place
            # before it is there: a request that is cut off may have created it all the same
            replica.add_session(session_id, once)
        wanted = wanted.model_copy(update={"session_id": session_id})
        document = wanted.model_dump_json(exclude_unset=True).encode()
        status, answer = await self._replicas.call(replica, SESSIONS, document, **headers)
        if status != HTTPStatus.OK and earlier is None:
            replica.forget_session(session_id)
        return _raw_answer(status, answer)

    async def _call_all(self, path: str, body: bytes) -> list[tuple[int, bytes]]:
        return await (self._replicas.pause(body) if path == PAUSE else self._replicas.resume())

    async def _forward(self, request: web.BaseRequest, replica: Replica) -> web.StreamResponse:
        if not replica.url:
            raise ConnectionResetError(f"process {replica.number} of the gateway is not there")
        return await self._forwarder.forward(request, replica.url)


def _add_up(answers: list[tuple[int, bytes]]) -> web.Response:
    """Return the sum of what the replicas answer, or the first refusal."""
    total: Counter[str] = Counter()
    for status, body in answers:
        if status != HTTPStatus.OK:
            return _raw_answer(status, body)
        total.update(orjson.loads(body))
    return json_answer(dict(total))


def _raw_answer(status: int, body: bytes) -> web.Response:
    return web.Response(
        body=body, status=status, content_type="application/json", headers=request_id()
    )

"""The admin API: create, inspect, finish and delete sessions, and pause the engine's calls.

Each endpoint of ``admin_routes.ROUTES`` is answered by the method of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runners.engines.resilient import ResilientEngine
from runners.gateway.dialects.body import parse_body
from runners.gateway.http.admin_routes import IDEMPOTENCY, ROUTES, SESSION_ID
from runners.gateway.http.openapi import describe_routes
from runners.gateway.refusal import RefusalKind, Refused
from runners.gateway.sessions.registry import SessionRegistry


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A request, taken apart."""

    session_id: str
    """"" if the path names none."""
    body: Any
    """As the route's ``body``; None if it has none."""
    idempotency_key: str


class AdminApi:
    """Answers the admin's requests for one gateway."""

    def __init__(self, registry: SessionRegistry, engine: ResilientEngine) -> None:
        self._registry = registry
        self._engine = engine
        self.control = ""
        """Path of the control socket; set by who opens it, before anything is served."""

    async def answer(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Answer a request, whose ``path`` is without ``/admin``; raises Refused."""
        for route in ROUTES:
            if route.method == method and (found := _match(route.path, path)) is not None:
                parsed = parse_body(route.body, body or b"{}") if route.body else None
                call = AdminCall(found, parsed, headers.get(IDEMPOTENCY, ""))
                answered: Mapping[str, Any] = await getattr(self, route.name)(call)
                return answered
        raise Refused(RefusalKind.UNKNOWN, f"no such endpoint: {method} /admin{path}")

    async def create_session(self, call: AdminCall) -> Mapping[str, Any]:
        """Create a session; its key is what a program uses as its API key."""
        entry = await self._registry.create(call.body, call.idempotency_key)
        return {"session_id": entry.session.id, "api_key": entry.key, "control": self.control}

    async def read_session(self, call: AdminCall) -> Mapping[str, Any]:
        """Return the state and the counters of a session."""
        return self._registry.find_by_id(call.session_id).session.stats()

    async def delete_session(self, call: AdminCall) -> Mapping[str, Any]:
        """End a session and forget it with its key; one that was not finished is cancelled."""
        await self._registry.delete(call.session_id)
        return {"session_id": call.session_id, "deleted": True}

    async def finish_session(self, call: AdminCall) -> Mapping[str, Any]:
        """End a session's turns, with a reward or without; can be repeated with the same."""
        return await self._registry.finish(call.session_id, call.body)

    async def pause(self, call: AdminCall) -> Mapping[str, Any]:
        """Let no generation begin until ``resume``; answer when none is at the engine."""
        return asdict(await self._engine.pause(call.body.deadline_s, keep=call.body.keep))

    async def resume(self, call: AdminCall) -> Mapping[str, Any]:
        """Let generations begin again."""
        self._engine.resume()
        return {}

    async def describe(self, call: AdminCall) -> Mapping[str, Any]:
        """Return this document."""
        return describe_routes(ROUTES, AdminApi)


def measure(registry: SessionRegistry, engine: ResilientEngine) -> dict[str, Any]:
    """Return what a process counts, and what is under way now."""
    admission = engine.admission
    return {
        "sessions": len(registry),
        "turns_in_flight": registry.count_in_flight(),
        "engine_calls": admission.in_flight,
        "engine_calls_waiting": admission.waiting,
        "engine_calls_limit": admission.limit,
        **registry.counts.to_dict(),
    }


def _match(pattern: str, path: str) -> str | None:
    """Return the session id in a path, "" if the pattern has none; None if it does not match."""
    head, found, tail = pattern.partition(SESSION_ID)
    if not found:
        return "" if path == pattern else None
    if not (path.startswith(head) and path.endswith(tail) and len(path) > len(head) + len(tail)):
        return None
    return path[len(head) : len(path) - len(tail)]

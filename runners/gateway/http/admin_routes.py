"""The endpoints of the admin API: requests are dispatched by this list, and the OpenAPI document is
made of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from runners.gateway.refusal import RefusalKind
from runners.gateway.sessions.admin_bodies import (
    CreatedSession,
    DeletedSession,
    FinishAnswer,
    FinishRequest,
    Nothing,
    Paused,
    PauseRequest,
    SessionRequest,
    SessionStats,
)

IDEMPOTENCY = "idempotency-key"
"""Header: two requests with the same key create one session (IETF
draft-ietf-httpapi-idempotency-key-header).
"""
SESSION_ID = "{session_id}"
"""Place of a session's id in a path."""


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One endpoint."""

    method: str
    path: str
    """Below ``/admin``."""
    name: str
    """The method of ``AdminApi`` that answers it; its docstring describes it."""
    answer: type[BaseModel] | None
    """Body of the answer; None: a JSON object of any form."""
    body: type[BaseModel] | None = None
    """Body of the request; None: it has none."""
    refusals: tuple[RefusalKind, ...] = ()
    """Those of its own, beside a wrong key and a body that is not valid."""


_SESSION = f"/sessions/{SESSION_ID}"
_UNKNOWN, _CONFLICT = (RefusalKind.UNKNOWN,), (RefusalKind.CONFLICT,)

ROUTES = (
    AdminRoute("POST", "/sessions", "create_session", CreatedSession, SessionRequest, _CONFLICT),
    AdminRoute("GET", _SESSION, "read_session", SessionStats, None, _UNKNOWN),
    AdminRoute("DELETE", _SESSION, "delete_session", DeletedSession, None, _UNKNOWN),
    AdminRoute(
        "POST", f"{_SESSION}/finish", "finish_session", FinishAnswer, FinishRequest, _UNKNOWN
    ),
    AdminRoute("POST", "/pause", "pause", Paused, PauseRequest),
    AdminRoute("POST", "/resume", "resume", Nothing),
    AdminRoute("GET", "/openapi.json", "describe", None),
)

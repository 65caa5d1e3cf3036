"""The sessions of a gateway: made, looked up by key or id, finished, forgotten.

Keys live in memory only and are never logged. A session that is deleted leaves nothing behind but
its stored turns.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from conf.sections.scenario import ScenarioKind
from runners.gateway.refusal import RefusalKind, Refused
from runners.gateway.session import Session, SessionServices
from runners.gateway.settings import SessionSampling
from runners.trajectory.graph import build_segments


class SamplingChanges(BaseModel):
    """What a session samples differently from the campaign."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    max_new_tokens: PositiveInt | None = None


class SessionRequest(BaseModel):
    """Body of ``POST /admin/sessions``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    session_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")] | None = None
    max_context_tokens: PositiveInt | None = None
    max_turns: PositiveInt | None = None
    sampling: SamplingChanges = SamplingChanges()
    scenario: ScenarioKind = "linear"
    seed: Annotated[int, Field(ge=0)] | None = None


class FinishRequest(BaseModel):
    """Body of ``POST /admin/sessions/{id}/finish``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    reward: float | None = None
    """Stored as an event; the last one counts."""
    segments: bool = True
    """False: answer with the counters alone. The tokens of every chain are megabytes, which a
    caller with access to the store has no use for.
    """


CloseCallback = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class SessionEntry:
    """A session, and what ends with it. Changed by the registry, and by listeners that attach
    themselves.
    """

    session: Session
    key: str
    made_by: str
    """Idempotency key of the request that made it; "" if it had none."""
    reward: float | None = None
    """Reported last."""
    closers: list[CloseCallback] = field(default_factory=list)
    """Listeners that were opened for this session alone."""


class SessionRegistry:
    """All sessions of a gateway process."""

    def __init__(
        self, services: SessionServices, sampling: SessionSampling, *, max_context_tokens: int
    ) -> None:
        self._services = services
        self._sampling = sampling
        self._max_context_tokens = max_context_tokens
        self._by_id: dict[str, SessionEntry] = {}
        self._by_key: dict[str, SessionEntry] = {}
        self._making: dict[str, asyncio.Task[SessionEntry]] = {}
        """How sessions are or were made, by idempotency key."""

    def __len__(self) -> int:
        return len(self._by_id)

    def find_by_key(self, key: str) -> SessionEntry:
        """Return the session that a key belongs to."""
        entry = self._by_key.get(key)
        if entry is None:
            raise Refused(
                RefusalKind.UNAUTHENTICATED, "unknown API key: use the api_key of a gateway session"
            )
        return entry

    def find_by_id(self, session_id: str) -> SessionEntry:
        """Return a session."""
        entry = self._by_id.get(session_id)
        if entry is None:
            raise Refused(
                RefusalKind.UNKNOWN, f"no session {session_id!r} (never made, or deleted)"
            )
        return entry

    async def create(self, wish: SessionRequest, idempotency_key: str = "") -> SessionEntry:
        """Make a session and its key; with an idempotency key that made one, return that one."""
        making = self._making.get(idempotency_key)
        if making is None:
            entry, info = self._new(wish, idempotency_key)
            making = asyncio.create_task(self._store(entry, info))
            making.add_done_callback(_consume_exception)
            if idempotency_key:
                self._making[idempotency_key] = making
        return await asyncio.shield(making)  # a client that leaves may ask for it again

    def _new(
        self, wish: SessionRequest, idempotency_key: str
    ) -> tuple[SessionEntry, dict[str, Any]]:
        """Return a session that has its id but not yet its key, and what is stored of it."""
        session_id = wish.session_id or f"session-{secrets.token_hex(8)}"
        limit = wish.max_context_tokens or self._max_context_tokens
        if limit > self._max_context_tokens:
            raise Refused(
                RefusalKind.INVALID,
                f"max_context_tokens: {limit} is more than the model's {self._max_context_tokens}",
            )
        if session_id in self._by_id:
            raise Refused(RefusalKind.CONFLICT, f"session {session_id!r} exists already")
        sampling = replace(self._sampling, **wish.sampling.model_dump(exclude_none=True))
        session = Session(
            session_id,
            self._services,
            sampling,
            max_context_tokens=limit,
            max_turns=wish.max_turns,
            seed=wish.seed,
        )
        entry = SessionEntry(session, secrets.token_urlsafe(32), idempotency_key)
        self._by_id[session_id] = entry
        return entry, {
            "scenario": wish.scenario,
            "seed": wish.seed,
            "sampling": asdict(sampling),
            "max_context_tokens": limit,
            "max_turns": wish.max_turns,
            "created_at": time.time(),
        }

    async def _store(self, entry: SessionEntry, info: dict[str, Any]) -> SessionEntry:
        session_id = entry.session.id
        try:
            await self._services.journal.add_session(session_id, info)
        except BaseException as error:
            self._forget(entry)
            if isinstance(error.__cause__, sqlite3.IntegrityError):
                raise Refused(
                    RefusalKind.CONFLICT, f"session {session_id!r} was used before"
                ) from error
            raise
        self._by_key[entry.key] = entry
        return entry

    def _forget(self, entry: SessionEntry) -> None:
        self._by_key.pop(entry.key, None)
        self._by_id.pop(entry.session.id, None)
        self._making.pop(entry.made_by, None)

    async def finish(self, session_id: str, ending: FinishRequest) -> dict[str, Any]:
        """End a session's turns; return its ``stats`` and, if asked for, its ``segments``.

        Safe to call again. ``stats["trained_tokens"]`` is counted on the segments, so it comes with
        them only.
        """
        entry = self.find_by_id(session_id)
        reward = ending.reward
        if reward is not None and reward != entry.reward:
            entry.reward = reward
            await self._services.journal.event(
                "session_reward", {"session_id": session_id, "reward": reward}
            )
        await _end_session(entry)
        stats = entry.session.stats()
        stats["forks"] = sum(left["kind"] != "compaction" for left in stats["breaks"])
        if not ending.segments:
            return {"stats": stats}
        segments = build_segments(await self._services.journal.turns(session_id))
        stats["trained_tokens"] = sum(int(segment.loss_mask.sum()) for segment in segments)
        return {"segments": segments, "stats": stats}

    async def delete(self, session_id: str) -> None:
        """End a session and forget it."""
        entry = self.find_by_id(session_id)
        await _end_session(entry)
        self._forget(entry)

    async def close(self) -> None:
        """Delete every session."""
        for session_id in list(self._by_id):
            await self.delete(session_id)


def _consume_exception(task: asyncio.Task[SessionEntry]) -> None:
    """Take note of a task's end, in case that nobody waits for it any more."""
    if not task.cancelled():
        task.exception()


async def _end_session(entry: SessionEntry) -> None:
    await entry.session.finish()
    closers, entry.closers = entry.closers, []
    for close in closers:
        await close()

"""The sessions of a gateway: create, find by key or id, finish, delete.

Keys are in memory only and are never logged. A deleted session leaves nothing but its stored turns.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from runners.gateway.gc_tuning import COLLECTOR
from runners.gateway.monitoring.counts import GatewayCounts
from runners.gateway.refusal import RefusalKind, Refused
from runners.gateway.sessions.admin_bodies import FinishRequest, SessionRequest
from runners.gateway.sessions.session import Session, SessionServices
from runners.gateway.sessions.session_rollouts import RolloutPlace, SessionRollouts
from runners.gateway.settings import SessionSampling
from runners.records.graph import build_segments
from runners.records.outcome import OutcomeCode
from runners.system.processes import AgentProcess

CloseCallback = Callable[[], Coroutine[Any, Any, None]]


def make_session_id() -> str:
    """Return an id for a session whose caller gives no id."""
    return f"session-{secrets.token_hex(8)}"


def make_key() -> str:
    """Return a new key: a secret of 256 bits."""
    return secrets.token_urlsafe(32)


@dataclass(slots=True)
class SessionEntry:
    """A session with its key and listeners; changed by the registry and by ``GatewayServer``."""

    session: Session
    key: str
    idempotency_key: str
    """Of the request that created it; "" if it had none."""
    place: RolloutPlace | None = None
    """None: the driver of a campaign keeps the rollouts."""
    reward: float | None = None
    """The one reported."""
    agents: list[AgentProcess] = field(default_factory=list)
    """The programs that are served on its listeners; none: whatever connects there."""
    asked: bool = False
    """The policy was asked for a turn, so its commands may run by now."""
    refused_command: bool = False
    """A process that is none of these programs was refused on a listener."""
    close_callbacks: list[CloseCallback] = field(default_factory=list)
    """Close the listeners that were opened for this session alone."""

    def add_agent(self, agent: AgentProcess) -> None:
        """Serve a program too; after the first turn no other process of its sandbox joins it."""
        self.agents.append(agent)
        if self.asked:
            agent.admit_no_more()

    def close_admission(self) -> None:
        """Take no further process for the agent program: the policy is about to be asked."""
        self.asked = True
        for agent in self.agents:
            agent.admit_no_more()


class SessionRegistry:
    """All sessions of a gateway process."""

    def __init__(
        self,
        services: SessionServices,
        sampling: SessionSampling,
        *,
        max_context_tokens: int,
        rollouts: SessionRollouts | None = None,
        make_key: Callable[[], str] = make_key,
    ) -> None:
        """``rollouts`` keeps the sessions that end; None: a campaign's driver does."""
        self._services = services
        self._sampling = sampling
        self._max_context_tokens = max_context_tokens
        self._rollouts = rollouts
        self._make_key = make_key
        self._by_id: dict[str, SessionEntry] = {}
        self._by_key: dict[str, SessionEntry] = {}
        self._creations: dict[str, asyncio.Task[SessionEntry]] = {}
        """By idempotency key; kept as long as the session, so that a late retry finds it."""

    @property
    def counts(self) -> GatewayCounts:
        """Return the sums over all sessions."""
        return self._services.counts

    def count_in_flight(self) -> int:
        """Return the number of turns that are being taken."""
        return sum(entry.session.in_flight for entry in self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def find_by_key(self, key: str) -> SessionEntry:
        """Return the session that a key belongs to; raises Refused."""
        entry = self._by_key.get(key)
        if entry is None:
            raise Refused(
                RefusalKind.UNAUTHENTICATED,
                "unknown API key: use the api_key of a gateway session",
            )
        return entry

    def find_by_id(self, session_id: str) -> SessionEntry:
        """Return a session; raises Refused."""
        entry = self._by_id.get(session_id)
        if entry is None:
            raise Refused(
                RefusalKind.UNKNOWN,
                f"no session {session_id!r} (never created, deleted, or ended with its process)",
            )
        return entry

    async def create(self, wanted: SessionRequest, idempotency_key: str = "") -> SessionEntry:
        """Create a session and its key, or return the one that this idempotency key created.

        Raises Refused if the id was ever used, or if a limit exceeds the model's.
        """
        creation = self._creations.get(idempotency_key)
        if creation is None:
            entry, facts = self._new_entry(wanted, idempotency_key)
            creation = asyncio.create_task(self._store(entry, facts))
            creation.add_done_callback(_read_exception)
            if idempotency_key:
                self._creations[idempotency_key] = creation
        # shielded: a disconnect cancels this request, and its retry wants the same session
        return await asyncio.shield(creation)

    def _new_entry(
        self, wanted: SessionRequest, idempotency_key: str
    ) -> tuple[SessionEntry, dict[str, Any]]:
        """Return a session that holds its id but cannot be used yet, and the facts to store."""
        session_id = wanted.session_id or make_session_id()
        limit = wanted.max_context_tokens or self._max_context_tokens
        if limit > self._max_context_tokens:
            raise Refused(
                RefusalKind.INVALID,
                f"max_context_tokens: {limit} is more than the model's {self._max_context_tokens}",
            )
        if session_id in self._by_id:
            raise Refused(RefusalKind.CONFLICT, f"session {session_id!r} exists already")
        sampling = replace(self._sampling, **wanted.sampling.model_dump(exclude_none=True))
        session = Session(
            session_id,
            self._services,
            sampling,
            max_context_tokens=limit,
            max_turns=wanted.max_turns or self._services.limits.turns,
            seed=wanted.seed,
        )
        place = None
        if self._rollouts is not None:
            place = self._rollouts.places.take(wanted.task or session_id)
        entry = SessionEntry(session, self._make_key(), idempotency_key, place)
        self._by_id[session_id] = entry
        return entry, {
            "task": wanted.task,
            "scenario": wanted.scenario,
            "seed": wanted.seed,
            "sampling": asdict(sampling),
            "max_context_tokens": limit,
            "max_turns": wanted.max_turns,
            "created_at": time.time(),
            **(place.to_facts() if place else {}),
        }

    async def _store(self, entry: SessionEntry, facts: dict[str, Any]) -> SessionEntry:
        session_id = entry.session.id
        try:
            await self._services.turn_log.add_session(session_id, facts)
        except BaseException as error:
            self._forget(entry)
            if isinstance(error.__cause__, sqlite3.IntegrityError):  # the store has the id already
                raise Refused(
                    RefusalKind.CONFLICT, f"session {session_id!r} was used before"
                ) from error
            raise
        self._by_key[entry.key] = entry  # only now: a key that works means a durable session
        return entry

    def _forget(self, entry: SessionEntry) -> None:
        self._by_key.pop(entry.key, None)
        self._by_id.pop(entry.session.id, None)
        self._creations.pop(entry.idempotency_key, None)
        COLLECTOR.collect_rest(len(self._by_id))

    async def finish(self, session_id: str, ending: FinishRequest) -> dict[str, Any]:
        """End a session's turns; return its ``stats`` and, if asked for, its ``segments``; and its
        ``rollout``, if it is kept here.

        Safe to call again, though not with another reward (raises Refused).
        ``stats["trained_tokens"]`` is counted on the segments, so it comes with them only.
        """
        entry = self.find_by_id(session_id)
        if ending.reward is not None:
            if self._rollouts is None:
                raise Refused(
                    RefusalKind.INVALID, "reward: a campaign's driver decides it, not its gateway"
                )
            if entry.reward not in (None, ending.reward):
                raise Refused(
                    RefusalKind.CONFLICT,
                    f"reward: session {session_id!r} was finished with {entry.reward}, and its "
                    f"rollout keeps it; {ending.reward} is another one",
                )
            entry.reward = ending.reward
        await _end_session(entry)
        stats = _final_stats(entry.session)
        answer: dict[str, Any] = {"stats": stats}
        if self._rollouts is not None and entry.place is not None:
            record = await self._rollouts.keep(entry.session, entry.place, stats, entry.reward)
            answer["rollout"] = {
                "rollout_id": record.rollout_id,
                "task": record.task_id,
                "outcome": record.outcome.code,
                "message": record.outcome.message,
                "reward": record.reward,
            }
        if not ending.segments:
            return answer
        segments = build_segments(await self._services.turn_log.turns(session_id))
        stats["trained_tokens"] = sum(int(segment.loss_mask.sum()) for segment in segments)
        return {"segments": segments, **answer}

    async def delete(
        self, session_id: str, unfinished: OutcomeCode = OutcomeCode.CANCELLED_USER
    ) -> None:
        """End a session and forget it; one that was not finished is kept as ``unfinished``."""
        entry = self.find_by_id(session_id)
        open_still = not entry.session.finished
        await _end_session(entry)
        if open_still and self._rollouts is not None and entry.place is not None:
            stats = _final_stats(entry.session)
            await self._rollouts.keep(entry.session, entry.place, stats, None, unfinished)
        self._forget(entry)

    async def close(self) -> None:
        """Delete every session: those that are open lose their gateway."""
        for session_id in list(self._by_id):
            if session_id in self._by_id:  # the admin may delete one while others end
                await self.delete(session_id, OutcomeCode.INFRA_GATEWAY)


def _read_exception(task: asyncio.Task[SessionEntry]) -> None:
    """Mark a task's exception as retrieved: asyncio logs one that is not, and all clients that
    waited for it may have left.
    """
    if not task.cancelled():
        task.exception()


def _final_stats(session: Session) -> dict[str, Any]:
    stats = session.stats()
    return stats | {"forks": sum(each["kind"] != "compaction" for each in stats["breaks"])}


async def _end_session(entry: SessionEntry) -> None:
    # turns first: a listener that closed before them would cut off their answers
    await entry.session.finish()
    callbacks, entry.close_callbacks = entry.close_callbacks, []
    for close in callbacks:
        await close()

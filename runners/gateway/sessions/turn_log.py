"""Durable storage of turns: the run's store, owned by one thread.

Every call returns when its effect is on disk; the session awaits it before it answers the agent.
Turns of one round of the loop, and those that come while others are being stored, are stored
together, in one transaction: each costs the less the busier the gateway is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

from conf.errors import ExitCode
from runners.records.record import RolloutRecord, Turn, WireExchange
from runners.records.routing import TurnRouting
from runners.records.session_summary import SessionSummary
from runners.records.store import MAX_TURNS, StoreError

T = TypeVar("T")


class TurnLog(Protocol):
    """The part of a store that the gateway uses; every call returns when its effect is durable."""

    def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """Record a new session; raises if the id was ever used."""
        ...

    def add_turn(
        self, turn: Turn, routing: TurnRouting | None = None, wire: WireExchange | None = None
    ) -> None:
        """Record a turn, and its routing and its wire bodies if there are any."""
        ...

    def add_turns(
        self, turns: Sequence[tuple[Turn, TurnRouting | None, WireExchange | None]]
    ) -> None:
        """Record turns as ``add_turn`` does, all or none of them."""
        ...

    def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns, in order."""
        ...

    def session_summary(self, session_id: str) -> SessionSummary:
        """Return the summary of a session's turns."""
        ...

    def put_rollout(self, record: RolloutRecord) -> None:
        """Add or overwrite a rollout."""
        ...

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record an event."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


@dataclass(frozen=True, slots=True)
class _NewTurn:
    """A turn that is to be recorded."""

    turn: Turn
    routing: TurnRouting | None
    make_wire: Callable[[], WireExchange | None]
    done: asyncio.Future[None]


class AsyncTurnLog:
    """A turn log on its own thread, so that neither disk nor SQLite blocks the event loop.

    One thread, not a pool: SQLite connections must stay with the thread that opened them, and calls
    must take effect in the order in which they were made; only a turn may overtake calls that are
    not turns, before the thread comes to either.
    """

    def __init__(self) -> None:
        self.broken = asyncio.Event()
        """Set once the disk has failed; see ``failure``."""
        self.failure: StoreError | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turn-log")
        self._log: TurnLog | None = None
        self._new_turns: list[_NewTurn] = []
        """Those that the thread stores together when it comes to them."""
        self._swap = threading.Lock()
        """Of ``_new_turns``, which the thread takes."""
        self._closed = False

    async def open(self, make: Callable[[], TurnLog]) -> None:
        """Open the log that ``make`` returns; it is called on the log's thread."""
        self._log = await self._run(make)

    async def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """See ``TurnLog.add_session``."""
        await self._run(lambda: self._opened.add_session(session_id, info))

    async def add_turn(
        self,
        turn: Turn,
        routing: TurnRouting | None = None,
        wire: Callable[[], WireExchange | None] = lambda: None,
    ) -> None:
        """See ``TurnLog.add_turn``; ``wire`` is called on the log's thread."""
        if self._closed:
            raise StoreError("the gateway has stopped: this turn cannot be stored any more")
        loop = asyncio.get_running_loop()
        # cached: what is recorded counts against its session's share, once though it is tried twice
        new = _NewTurn(turn, routing, cache(wire), loop.create_future())
        with self._swap:
            self._new_turns.append(new)
            is_first = len(self._new_turns) == 1
        if is_first:
            # when the loop has gone round: turns that are ready now come with it, and the thread,
            # which asks for the interpreter again and again, does so once for all of them
            loop.call_soon(self._thread.submit, self._write_turns, loop)
        with self._noting_failures():
            await new.done

    async def turns(self, session_id: str) -> list[Turn]:
        """See ``TurnLog.turns``."""
        return await self._run(lambda: self._opened.turns(session_id))

    async def session_summary(self, session_id: str) -> SessionSummary:
        """See ``TurnLog.session_summary``."""
        return await self._run(lambda: self._opened.session_summary(session_id))

    async def put_rollout(self, record: RolloutRecord) -> None:
        """See ``TurnLog.put_rollout``."""
        await self._run(lambda: self._opened.put_rollout(record))

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """See ``TurnLog.event``."""
        await self._run(lambda: self._opened.event(kind, data))

    async def close(self) -> None:
        """Close the log after everything handed in is written; turns that come later fail."""
        self._closed = True
        if self._log is not None:
            # those that wait for the loop to go round would come after the log is closed
            self._thread.submit(self._write_turns, asyncio.get_running_loop())
            await self._run(self._log.close)
        # without waiting: the thread has nothing left to do, and joining it would block the loop
        self._thread.shutdown(wait=False)

    @property
    def _opened(self) -> TurnLog:
        assert self._log is not None, "the turn log was not opened"
        return self._log

    def _write_turns(self, loop: asyncio.AbstractEventLoop) -> None:
        """Store the turns that wait; runs on the log's thread."""
        with self._swap:
            waiting, self._new_turns = self._new_turns, []
        for start in range(0, len(waiting), MAX_TURNS):
            turns = waiting[start : start + MAX_TURNS]
            loop.call_soon_threadsafe(_settle, turns, self._write(turns))

    def _write(self, turns: Sequence[_NewTurn]) -> list[Exception | None]:
        """Return what became of each turn: None if it is stored."""
        log = self._opened
        outcomes: list[Exception | None] = []
        if len(turns) > 1:
            try:
                log.add_turns([(new.turn, new.routing, new.make_wire()) for new in turns])
            except Exception as error:  # if it is one turn's, that turn raises its own below
                if _is_of_disk(error):  # each by itself would fail too, after a lock's 30 s
                    return [error] * len(turns)
            else:
                return [None] * len(turns)
        for new in turns:
            try:
                log.add_turn(new.turn, new.routing, new.make_wire())
                outcomes.append(None)
            except Exception as error:  # raised where the turn's own request waits for it
                outcomes.append(error)
        return outcomes

    async def _run(self, call: Callable[[], T]) -> T:
        with self._noting_failures():
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            if _is_of_disk(error):
                self.failure = self.failure or error
                self.broken.set()
            raise


def _is_of_disk(error: Exception) -> bool:
    """Return whether an error is the disk's fault, not the request's: the gateway ends with it."""
    return isinstance(error, StoreError) and error.exit_code is ExitCode.SERVICE_GONE


def _settle(turns: Sequence[_NewTurn], outcomes: Sequence[Exception | None]) -> None:
    for new, error in zip(turns, outcomes, strict=True):
        if new.done.done():  # nobody waits any more
            continue
        if error is None:
            new.done.set_result(None)
        else:
            new.done.set_exception(error)

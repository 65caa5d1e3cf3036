"""Register the resources that a run has outside its store, and end those that dead drivers left.

A resource is registered before it exists and unregistered after it is gone, and both calls are
durable when they return. So whatever a killed driver left behind is in the ledger. An entry may
name a resource that was never made: ending it must then do nothing.

Attempts keep their record, their events and their resources likewise. The store belongs to the
driver, so an attempt on another machine implements ``RolloutRecorder`` by asking the driver
(``ray_workers/``).
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from conf.errors import AgentrlError
from runners.records.record import RolloutRecord
from runners.records.session_summary import SessionSummary
from runners.records.store import Driver, RunStore, current_process
from runners.records.text import dumps, loads
from runners.system.processes.process_tags import SERVICE_TAG, is_tagged, kill_tagged

ResourceKind = Literal["process", "session", "sandbox"]
"""A service process of the run, a gateway session, a sandbox."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A resource that exists, or may exist."""

    kind: ResourceKind
    name: str
    facts: dict[str, Any]
    """Needed to end it, or to recognize it: a pid, a provider's id, a temporary directory."""
    driver: Driver
    """The process that registered it."""
    entered_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class ReapedEntry:
    """An entry of a dead driver, and whether its resource was ended."""

    entry: LedgerEntry
    error: str | None = None
    """Why the resource may still exist; the entry then stays in the ledger."""


class SandboxReaper(Protocol):
    """Ends sandboxes by name: a ``SandboxBackend``."""

    async def reap(self, leaked: Mapping[str, Mapping[str, Any]]) -> None:
        """End these sandboxes, name → facts; raises AgentrlError."""
        ...


class Ledger:
    """The ledger of one run: writes entries of this process, reads those of every process."""

    def __init__(self, store: RunStore) -> None:
        self._db = store.database
        self._driver = current_process()
        self.store = store

    def register(self, kind: ResourceKind, name: str, **facts: Any) -> None:
        """Register a resource that is about to be made, or replace its entry; raises StoreError."""
        me = self._driver
        self._db.execute(
            "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, name, dumps(facts), me.host, me.pid, me.started_at, time.time()),
        )

    def add_facts(self, kind: ResourceKind, name: str, **facts: Any) -> None:
        """Add facts that are known only once the resource exists: a pid, a provider's id."""
        self._db.execute(
            "UPDATE ledger SET facts = json_patch(facts, ?) WHERE kind = ? AND name = ?",
            (dumps(facts), kind, name),
        )

    def unregister(self, kind: ResourceKind, name: str) -> None:
        """Remove a resource that is gone; does nothing if it is not registered."""
        self._db.execute("DELETE FROM ledger WHERE kind = ? AND name = ?", (kind, name))

    def unregister_all(self, kind: ResourceKind) -> None:
        """Remove everything of a kind that this process registered, for when all of it is gone."""
        me = self._driver
        self._db.execute(
            "DELETE FROM ledger WHERE kind = ? AND host = ? AND pid = ? AND pid_started_at = ?",
            (kind, me.host, me.pid, me.started_at),
        )

    def entries(self) -> list[LedgerEntry]:
        """Return what is registered, oldest first; empty for a store older than the ledger."""
        if not self._db.rows("SELECT 1 FROM sqlite_schema WHERE name = 'ledger'"):
            return []
        return [
            LedgerEntry(kind, name, loads(facts), Driver(host, pid, started_at), entered_at)
            for kind, name, facts, host, pid, started_at, entered_at in self._db.rows(
                "SELECT kind, name, facts, host, pid, pid_started_at, entered_at FROM ledger "
                "ORDER BY entered_at, name"
            )
        ]

    def find_leaks(self, guard_s: float | None = None) -> list[LedgerEntry]:
        """Return entries whose driver is dead.

        With ``guard_s`` also sandboxes and sessions older than that: no attempt lives so long.
        """
        entries, state = self.entries(), self.store.state()
        living = {
            driver: driver.alive(state.heartbeat_at if driver == state.driver else None)
            for driver in {entry.driver for entry in entries}
        }
        oldest = 0.0 if guard_s is None else time.time() - guard_s
        return [
            entry
            for entry in entries
            if not living[entry.driver] or (entry.kind != "process" and entry.entered_at < oldest)
        ]


def is_gone(entry: LedgerEntry) -> bool:
    """Return whether a service of this machine has ended, though its driver could not note it."""
    here = entry.kind == "process" and entry.driver.host == socket.gethostname()
    return here and not is_tagged(SERVICE_TAG, entry.name)


async def reap(ledger: Ledger, backend: SandboxReaper | None = None) -> list[ReapedEntry]:
    """End the resources that dead drivers of this run left; return their entries.

    Entries of ended resources are removed. Sessions have ended with their gateway, which is one of
    the processes. Sandboxes are skipped without a ``backend``. What cannot be ended stays
    registered, and the ``reaped`` event says why.
    """
    found: list[ReapedEntry] = []
    sandboxes: list[LedgerEntry] = []
    for entry in ledger.find_leaks():
        if entry.kind == "sandbox":
            sandboxes.append(entry)
        elif entry.kind == "process":
            found.append(await asyncio.to_thread(_end_process, entry))
        else:
            found.append(ReapedEntry(entry))
    if backend is not None and sandboxes:
        error = await _end_sandboxes(sandboxes, backend)
        found += [ReapedEntry(entry, error) for entry in sandboxes]
    for reaped in found:
        if reaped.error is None:
            ledger.unregister(reaped.entry.kind, reaped.entry.name)
    if found:
        ended = [reaped.entry.name for reaped in found if reaped.error is None]
        failed = {reaped.entry.name: reaped.error for reaped in found if reaped.error}
        ledger.store.event("reaped", {"ended": ended, "failed": failed})
    return found


def _end_process(entry: LedgerEntry) -> ReapedEntry:
    """Kill a service by its tag, not its pid, and remove its temporary directory.

    The pid may belong to another process by now, and a service may have children.
    """
    if entry.driver.host != socket.gethostname():
        return ReapedEntry(entry, f"it ran on {entry.driver.host}: check there that it has ended")
    try:
        kill_tagged(SERVICE_TAG, entry.name.__eq__)
    except TimeoutError as error:
        return ReapedEntry(entry, str(error))
    scratch = Path(entry.facts.get("scratch", ""))
    if scratch.name.endswith(entry.name):  # never remove a directory that is not its own
        shutil.rmtree(scratch, ignore_errors=True)
    return ReapedEntry(entry)


async def _end_sandboxes(entries: list[LedgerEntry], backend: SandboxReaper) -> str | None:
    """End sandboxes; return the error message, None if there was no error."""
    try:
        await backend.reap({entry.name: entry.facts for entry in entries})
    except AgentrlError as error:
        return str(error)
    return None


class ResourceRegistry(Protocol):
    """Registers a resource before it exists."""

    async def register(self, kind: ResourceKind, name: str) -> None:
        """Register a resource that is about to be made; raises StoreError."""
        ...

    async def unregister(self, kind: ResourceKind, name: str) -> None:
        """Remove a resource that is gone; raises StoreError."""
        ...


class RolloutRecorder(ResourceRegistry, Protocol):
    """Stores what attempts produce; every call raises StoreError."""

    async def put_rollout(self, record: RolloutRecord) -> None:
        """Write one attempt's record, or replace it."""
        ...

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """Append an event to the run's log."""
        ...

    async def session_summary(self, session_id: str) -> SessionSummary:
        """Return the summary of a session's stored turns."""
        ...


class StoreRecorder:
    """The recorder in the driver's own process: it writes to the run's store and ledger."""

    def __init__(self, store: RunStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def register(self, kind: ResourceKind, name: str) -> None:
        """Register a resource that is about to be made."""
        self._ledger.register(kind, name)

    async def unregister(self, kind: ResourceKind, name: str) -> None:
        """Remove a resource that is gone."""
        self._ledger.unregister(kind, name)

    async def put_rollout(self, record: RolloutRecord) -> None:
        """Write one attempt's record, or replace it."""
        self._store.put_rollout(record)

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """Append an event to the run's log."""
        self._store.event(kind, data)

    async def session_summary(self, session_id: str) -> SessionSummary:
        """Return the summary of a session's stored turns."""
        return self._store.session_summary(session_id)

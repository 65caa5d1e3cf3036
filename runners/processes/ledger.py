"""The ledger of a run: what exists outside its store, so that nothing is left when a driver is
killed.

A thing is entered before it exists and leaves after it is gone; both are durable when they return.
So whatever a dead driver left is in the ledger. An entry may name a thing that never came to be.
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
from runners.processes.process_tags import SERVICE_TAG, kill_tagged
from runners.store.json_text import dumps, loads
from runners.store.run_state import Driver, this_process
from runners.store.run_store import RunStore

ResourceKind = Literal["process", "session", "sandbox"]
"""A service of the run, a gateway session, a sandbox."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A thing that exists, or may."""

    kind: ResourceKind
    name: str
    facts: dict[str, Any]
    """What ends it, or tells it to a human: a pid, a provider's id."""
    driver: Driver
    """Who entered it."""
    entered_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class ReapedEntry:
    """What became of an entry of a dead driver."""

    entry: LedgerEntry
    error: str | None = None
    """Why it may still be there; it stays in the ledger then."""


class SandboxReaper(Protocol):
    """What ends sandboxes by name: a ``SandboxBackend``."""

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """End them, name → facts; raises AgentrlError."""
        ...


class Ledger:
    """The ledger of one run; of this process what it enters, of every process what it reads."""

    def __init__(self, store: RunStore) -> None:
        self._db = store.database
        self._driver = this_process()
        self.store = store

    def register(self, kind: ResourceKind, name: str, **facts: Any) -> None:
        """Register a thing that is about to be made; entering it again replaces what is known."""
        me = self._driver
        self._db.execute(
            "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, name, dumps(facts), me.host, me.pid, me.started_at, time.time()),
        )

    def note(self, kind: ResourceKind, name: str, **facts: Any) -> None:
        """Add what is known only now: a pid, a provider's id."""
        self._db.execute(
            "UPDATE ledger SET facts = json_patch(facts, ?) WHERE kind = ? AND name = ?",
            (dumps(facts), kind, name),
        )

    def unregister(self, kind: ResourceKind, name: str) -> None:
        """Take a thing off that is gone; one that is not registered is fine."""
        self._db.execute("DELETE FROM ledger WHERE kind = ? AND name = ?", (kind, name))

    def unregister_all(self, kind: ResourceKind) -> None:
        """Take off everything of a kind that this process entered: what held it is gone."""
        me = self._driver
        self._db.execute(
            "DELETE FROM ledger WHERE kind = ? AND host = ? AND pid = ? AND pid_started_at = ?",
            (kind, me.host, me.pid, me.started_at),
        )

    def entries(self) -> list[LedgerEntry]:
        """Return what is registered now, oldest first; nothing for a store of before the ledger."""
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
        """Return what nobody looks after any more: its driver is dead, or it is a sandbox or a
        session, and older than an attempt may get.
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


async def reap(ledger: Ledger, backend: SandboxReaper | None = None) -> list[ReapedEntry]:
    """End what dead drivers of this run left, and take it off; returns what there was.

    Sessions ended with their gateway; sandboxes wait for a call with a backend. What cannot be
    ended stays registered, and the event that this writes says why.
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
    """Kill a service by its mark and remove its temporary directory."""
    if entry.driver.host != socket.gethostname():
        return ReapedEntry(entry, f"it ran on {entry.driver.host}: see there that it has ended")
    try:
        kill_tagged(SERVICE_TAG, entry.name.__eq__)
    except TimeoutError as error:
        return ReapedEntry(entry, str(error))
    scratch = Path(entry.facts.get("scratch", ""))
    if scratch.name.endswith(entry.name):  # what is stored may name no other directory
        shutil.rmtree(scratch, ignore_errors=True)
    return ReapedEntry(entry)


async def _end_sandboxes(entries: list[LedgerEntry], backend: SandboxReaper) -> str | None:
    """Return why it failed, if it did."""
    try:
        await backend.reap({entry.name: entry.facts for entry in entries})
    except AgentrlError as error:
        return str(error)
    return None

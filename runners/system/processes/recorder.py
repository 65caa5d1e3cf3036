"""Durable records of an attempt: its rollout record, its events, the resources it is about to make.

Every call returns only when what it was given is durable. The store belongs to the driver, so an
attempt on another machine implements ``RolloutRecorder`` by asking the driver (``ray_workers/``).
"""

from __future__ import annotations

from typing import Any, Protocol

from runners.records.record import RolloutRecord
from runners.records.session_summary import SessionSummary
from runners.records.store import RunStore
from runners.system.processes.ledger import Ledger, ResourceKind


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

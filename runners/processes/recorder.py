"""What an attempt must not lose: its record, its events, and what it is about to make.

Each call returns once what it was given is durable. The store is the driver's, so an attempt that
runs elsewhere asks the driver (``executors/``).
"""

from __future__ import annotations

from typing import Any, Protocol

from runners.processes.ledger import Ledger, ResourceKind
from runners.store.run_store import RunStore
from runners.trajectory.record import RolloutRecord, Turn


class ResourceRegistry(Protocol):
    """What says that a thing exists before it does."""

    async def register(self, kind: ResourceKind, name: str) -> None:
        """Register a thing that is about to be made; raises StoreError."""
        ...

    async def unregister(self, kind: ResourceKind, name: str) -> None:
        """Take a thing off that is gone; raises StoreError."""
        ...


class RolloutRecorder(ResourceRegistry, Protocol):
    """What keeps for attempts; every call raises StoreError."""

    async def put_rollout(self, record: RolloutRecord) -> None:
        """Write one attempt, new or again."""
        ...

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record a notable thing."""
        ...

    async def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns, in order."""
        ...


class StoreRecorder:
    """The keeper of attempts in the driver's own process."""

    def __init__(self, store: RunStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def register(self, kind: ResourceKind, name: str) -> None:
        """Register a thing that is about to be made."""
        self._ledger.register(kind, name)

    async def unregister(self, kind: ResourceKind, name: str) -> None:
        """Take a thing off that is gone."""
        self._ledger.unregister(kind, name)

    async def put_rollout(self, record: RolloutRecord) -> None:
        """Write one attempt, new or again."""
        self._store.put_rollout(record)

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record a notable thing."""
        self._store.event(kind, data)

    async def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns, in order."""
        return self._store.turns(session_id)

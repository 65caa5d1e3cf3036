"""A rollout read back from the store: its turns are read once, their graph is built once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runners.records.graph import build_segments
from runners.records.record import RolloutRecord, Segment, Turn
from runners.records.routing import Routing, RoutingShape, build_segment_routing
from runners.records.store import RunStore


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One attempt with its turns, and the segments that they form."""

    record: RolloutRecord
    turns: Sequence[Turn]
    """Without their texts."""
    segments: Sequence[Segment]
    """In order of their first turns."""
    routing: Callable[[Segment], Routing | None]
    """Return a segment's captured routing; None if samples carry none. Raises RoutingError."""


LoadRollout = Callable[[RolloutRecord], StoredRollout]
"""Reads a rollout; raises StoreError, ChainError."""


def load_rollout(
    store: RunStore, shape: RoutingShape | None, record: RolloutRecord
) -> StoredRollout:
    """Read a rollout from the store, with routing if a ``shape`` is given.

    Raises StoreError, and ChainError if the turns do not fit together.
    """
    turns = store.turns(record.session_id, texts=False)
    captured = store.routing(record.session_id) if shape is not None else {}

    def routing(segment: Segment) -> Routing | None:
        return None if shape is None else build_segment_routing(segment, captured, shape)

    return StoredRollout(record, turns, build_segments(turns), routing)

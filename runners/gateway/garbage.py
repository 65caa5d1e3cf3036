"""Bound the pauses of the garbage collector, however much the sessions hold.

A full collection walks through all objects that may be in cycles: 80 ms of 1,000 sessions with four
turns each, seconds of as many long ones, in which no request is answered. So what survives one is
left out of the next (``gc.freeze``), which walks through what is new only. Reference counts free
nearly everything: in 6,000 turns no full collection found a cycle. Those that were left out while
they were in use, of the tracebacks of failed turns, are looked for when nobody waits: when a
session ends and no other is open.
"""

from __future__ import annotations

import gc
from typing import Any

COLLECTIONS = (700, 10, 3)
"""Thresholds (``gc.set_threshold``). A full collection has some 10,000 objects at the third, and
takes 10 ms; at Python's 10 it has 30,000.
"""
LEFT_OUT = 50_000
"""Objects of ended sessions for which all is looked through, which takes 0.1 s and more."""


class GarbageCollector:
    """Python's collector, as the process of a gateway uses it."""

    def __init__(self) -> None:
        self._imported: int | None = None
        """Objects that were there before the first session; None: the collector works as usual."""

    def bound_pauses(self) -> None:
        """Leave out what is there now, and from now on what survives a full collection."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        gc.callbacks.append(self._freeze)
        self._imported = gc.get_freeze_count()

    def collect_rest(self) -> None:
        """Free what was left out and is in use no longer, if there is much of it; call it when no
        session is open.
        """
        if self._imported is None or gc.get_freeze_count() - self._imported < LEFT_OUT:
            return
        gc.unfreeze()
        gc.collect()  # what survives is left out again
        self._imported = gc.get_freeze_count()

    def _freeze(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()


COLLECTOR = GarbageCollector()
"""Of this process: there is one."""

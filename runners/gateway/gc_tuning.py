"""Bound the pauses of the garbage collector, however much the sessions hold.

A full collection walks through all objects that may be in cycles: 80 ms of 1,000 sessions with four
turns each, seconds of as many long ones, in which no request is answered. So what survives one is
left out of the next (``gc.freeze``), which walks through what is new only. Reference counts free
nearly everything: in 6,000 turns no full collection found a cycle. But a turn whose client leaves
ends in one, of its traceback's frames, and its whole session hangs on them: if it was left out
while it waited for its answer, it stays. Such cycles are looked for when nobody waits: when a
session ends and no other is open. Where there always is one, as in a stream, after so many ended
sessions that the pause is rare, and what has to stay till then is little beside what is in use.
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
ENDED = 1000
"""Sessions that end before all is looked through while others are open; at least ..."""
PER_OPEN = 2
"""... so many for each that is open, since the pause is as long as they are many."""


class GcTuning:
    """Python's collector, as the process of a gateway uses it."""

    def __init__(self) -> None:
        self._imported: int | None = None
        """Objects that were there before the first session; None: the collector works as usual."""
        self._ended = 0
        """Sessions since all was looked through."""

    def freeze(self) -> None:
        """Leave out what is there now, and from now on what survives a full collection."""
        gc.collect()  # first: what is frozen is never freed, garbage included
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        gc.callbacks.append(self._freeze_survivors)
        self._imported = gc.get_freeze_count()

    def collect_rest(self, open_sessions: int) -> None:
        """Free what was left out and is in use no longer, if there may be much of it; call it when
        a session has ended.
        """
        if self._imported is None:
            return
        self._ended += 1
        if open_sessions:
            if self._ended < max(ENDED, PER_OPEN * open_sessions):
                return
        elif gc.get_freeze_count() - self._imported < LEFT_OUT:
            return
        self._ended = 0
        gc.unfreeze()
        gc.collect()  # what survives is left out again
        if not open_sessions:
            self._imported = gc.get_freeze_count()

    def _freeze_survivors(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()


COLLECTOR = GcTuning()
"""Of this process: there is one."""

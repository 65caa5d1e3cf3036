"""Token ids in memory that grows at its end, so that a path's continuation copies only what is new.

Invariant: ids that were returned never change; only places behind them are written.
"""

from __future__ import annotations

import numpy as np

from runners.records.record import IdArray

SPARE = 0.5
"""Places beyond what is needed, as a share of it: a path is moved a few times in all."""


class GrowingIds:
    """Memory for one path of token ids; changed by ``append`` only."""

    def __init__(self) -> None:
        self._memory: IdArray = np.empty(0, np.int32)
        self._used = 0

    def append(self, path: IdArray, added: IdArray) -> IdArray:
        """Return ``path`` and ``added`` behind it as one read-only array, int32 [n + m].

        In place if ``path`` is all that this memory holds; otherwise, as when another continuation
        of the same path was tried before, memory of its own is begun.
        """
        start, end = len(path), len(path) + len(added)
        if path.base is not self._memory or start != self._used or end > len(self._memory):
            memory: IdArray = np.empty(end + int(SPARE * end), np.int32)
            memory[:start] = path
            self._memory = memory
        self._memory[start:end] = added
        self._used = end
        grown = self._memory[:end]
        grown.flags.writeable = False
        return grown

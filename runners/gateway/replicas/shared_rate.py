"""A rate limit that several processes share."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import time

from runners.concurrency.limits import TokenBucket

_DUE = struct.Struct("d")


def open_shared_rate() -> int:
    """Return the descriptor of a file in memory, which processes inherit to share a rate."""
    return os.memfd_create("agentrl-rate", os.MFD_CLOEXEC)


class SharedTokenBucket(TokenBucket):
    """A ``TokenBucket`` whose next token's time lies in a file that several processes have open.

    In one process callers are admitted in the order in which they asked, processes in the order in
    which they read the file. One that dies while it waits has taken a token that nobody uses.
    """

    def __init__(self, rate_per_s: float | None, file: int) -> None:
        super().__init__(rate_per_s)
        self._file = file

    async def take(self) -> None:
        """Return when it is the caller's turn."""
        if not self._interval_s:
            return
        async with self._lock:
            await asyncio.sleep(self._reserve())

    def _reserve(self) -> float:
        """Take the next token; return the seconds until it is due."""
        now = time.monotonic()  # the same clock in every process
        # lockf, not flock: the descriptor is inherited, so its flock would be every process's. It
        # is held for two system calls, and the kernel frees the lock of a process that dies.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            (due,) = _DUE.unpack(os.pread(self._file, _DUE.size, 0).ljust(_DUE.size, b"\0"))
            due = max(due, now)
            os.pwrite(self._file, _DUE.pack(due + self._interval_s), 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return float(due - now)

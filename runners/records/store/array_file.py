"""One append-only file of arrays: its lock, its end, and blocks with checksums.

Bytes are complete before a row refers to them. A crash therefore leaves at most an unused tail, and
a block that a row refers to never changes. The row keeps the block's checksum: a block that the
disk lost is refused, never trained.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from conf.errors import ExitCode
from runners.records.store.store_error import StoreError


class ArrayFile:
    """An append-only file, opened on first use; its methods raise OSError and StoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: int | None = None
        self._writer: int | None = None
        self._end = 0

    def claim(self, wait_s: float = 0.0) -> None:
        """Take the lock that makes this the only process that appends.

        ``wait_s`` gives the gateway of a killed driver time to end; raises StoreError after it.
        """
        if self._writer is not None:
            return
        self.path.parent.mkdir(exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(handle, self.path, time.monotonic() + wait_s)
        except BaseException:
            os.close(handle)
            raise
        self._writer, self._end = handle, os.fstat(handle).st_size

    @property
    def end(self) -> int:
        """The bytes of the file, once it is claimed."""
        return self._end

    def append(self, *blocks: bytes) -> list[tuple[int, int]]:
        """Write all bytes of some blocks, one after the other; return the offset and CRC-32 of
        each.
        """
        self.claim()
        assert self._writer is not None
        data, offset, done = b"".join(blocks), self._end, 0
        while done < len(data):  # a nearly full disk takes a part and raises at the next call
            done += os.pwrite(self._writer, data[done:], offset + done)
        self._end += len(data)
        offsets = accumulate(map(len, blocks), initial=offset)
        return [(place, zlib.crc32(block)) for place, block in zip(offsets, blocks, strict=False)]

    def read(self, offset: int, size: int, crc: int) -> bytes:
        """Return bytes that were appended; raises StoreError if the disk lost or changed them."""
        if self._reader is None:
            with suppress(FileNotFoundError):  # deleted: its arrays are lacking like any others
                self._reader = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        data = b"" if self._reader is None else os.pread(self._reader, size, offset)
        if len(data) != size or zlib.crc32(data) != crc:
            raise StoreError(
                f"{self.path} lacks the arrays of a stored turn (offset {offset}): the "
                "machine lost power or the file was changed; restore the run directory from "
                "a copy, or start a new run"
            )
        return data

    def close(self) -> None:
        """Close the file; the lock goes with it."""
        for handle in (self._reader, self._writer):
            if handle is not None:
                os.close(handle)
        self._reader = self._writer = None


def _lock(handle: int, path: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise StoreError(
                    f"{path} is written by another process: a gateway of this run is still alive; "
                    "end it, then retry",
                    ExitCode.SERVICE_GONE,
                ) from None
            time.sleep(0.05)
        else:
            return

"""The append-only array file of a run: token ids and logprobs of every turn.

Invariant: one process appends (it holds the file's lock), and bytes are complete before anything
refers to them. So a crash leaves at most an unused tail, and a block, once referred to, never
changes. Its checksum is kept with the reference: a block that the disk lost is refused, never
trained.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conf.errors import ExitCode
from runners.trajectory.record import IdArray, LogprobArray
from runners.trajectory.store_error import StoreError

_ID = np.dtype("<i4")
_LOGPROB = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Block:
    """Where one turn's arrays lie: prompt ids, output ids, logprobs, one after the other."""

    offset: int
    """Bytes from the start of the file."""
    prompt: int
    """Prompt ids."""
    output: int
    """Output ids, and as many logprobs."""
    crc: int
    """CRC-32 of the bytes."""

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.prompt * _ID.itemsize + self.output * (_ID.itemsize + _LOGPROB.itemsize)


class TurnArrays:
    """``arrays/turns.bin``, opened when first needed; raises OSError and StoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: int | None = None
        self._writer: int | None = None
        self._end = 0

    def claim(self, wait_s: float = 0.0) -> None:
        """Become the one process that appends; refuse after waiting for a dying predecessor."""
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

    def append(self, prompt: IdArray, output: IdArray, logprobs: LogprobArray) -> Block:
        """Write one turn's arrays, completely, and say where."""
        self.claim()
        assert self._writer is not None
        data = b"".join(
            (
                prompt.astype(_ID).tobytes(),
                output.astype(_ID).tobytes(),
                logprobs.astype(_LOGPROB).tobytes(),
            )
        )
        offset, done = self._end, 0
        while done < len(data):  # a nearly full disk takes a part, then raises
            done += os.pwrite(self._writer, data[done:], offset + done)
        self._end += len(data)
        return Block(offset, len(prompt), len(output), zlib.crc32(data))

    def read(self, block: Block) -> tuple[IdArray, IdArray, LogprobArray]:
        """Return prompt ids, output ids and logprobs of one turn (read-only arrays)."""
        if self._reader is None:
            self._reader = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(self._reader, block.size, block.offset)
        if len(data) != block.size or zlib.crc32(data) != block.crc:
            raise StoreError(
                f"{self.path} lacks the arrays of a stored turn (offset {block.offset}): the "
                "machine lost power or the file was changed; restore the run directory from "
                "a copy, or start a new run"
            )
        cut = block.prompt * _ID.itemsize
        ids = np.frombuffer(data, _ID, block.prompt + block.output)
        logprobs = np.frombuffer(data, _LOGPROB, block.output, cut + block.output * _ID.itemsize)
        return ids[: block.prompt], ids[block.prompt :], logprobs

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
                    "end it, then try again",
                    ExitCode.SERVICE_GONE,
                ) from None
            time.sleep(0.05)
        else:
            return

"""Append-only files with the token ids, logprobs and routing of every turn of a run.

Each process that adds turns has files of its own, by its number, and holds their locks; a row names
the file of its block. Bytes are complete before a row refers to them. A crash therefore leaves at
most an unused tail, and a block that a row refers to never changes. The row keeps the block's
checksum: a block that the disk lost is refused, never trained.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from conf.errors import ExitCode
from runners.store.store_error import StoreError
from runners.trajectory.declaration import Column
from runners.trajectory.record import IdArray, LogprobArray
from runners.trajectory.routing import RoutingArray

_ID = np.dtype("<i4")
_LOGPROB = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Block:
    """Place of one turn's arrays: prompt ids, output ids, logprobs, one after the other."""

    offset: Annotated[int, Column("array_offset")]
    """Bytes from the start of the file."""
    prompt: Annotated[int, Column("prompt_count")]
    """Number of prompt ids."""
    output: Annotated[int, Column("output_count")]
    """Number of output ids, and of logprobs."""
    crc: Annotated[int, Column("array_crc")]
    """CRC-32 of the bytes."""
    file: Annotated[int, Column("array_file")] = 0
    """Number of the process that wrote it; 0 in runs from before there were several."""

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return self.prompt * _ID.itemsize + self.output * (_ID.itemsize + _LOGPROB.itemsize)


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

    def append(self, data: bytes) -> tuple[int, int]:
        """Write all bytes; return their offset and CRC-32."""
        self.claim()
        assert self._writer is not None
        offset, done = self._end, 0
        while done < len(data):  # a nearly full disk takes a part and raises at the next call
            done += os.pwrite(self._writer, data[done:], offset + done)
        self._end += len(data)
        return offset, zlib.crc32(data)

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


class TurnArrays:
    """``arrays/turns.bin``: token ids and logprobs of every turn, and beside it
    ``arrays/routing.bin``: the routing of turns that have any. Those of another writer than 0 have
    its number in their names: ``turns-1.bin``.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[tuple[str, int], ArrayFile] = {}
        """By content and writer; opened on first use."""
        self._writer = 0

    def claim(self, wait_s: float = 0.0, *, writer: int = 0) -> None:
        """Take the lock of a writer's file, as ``ArrayFile.claim`` does, and append to that file
        from now on; it stands for the routing file too.
        """
        self._file("turns", writer).claim(wait_s)
        self._writer = writer

    def append(self, prompt: IdArray, output: IdArray, logprobs: LogprobArray) -> Block:
        """Write one turn's arrays, int32 [n], int32 [m] and float32 [m]; return their place."""
        parts = (prompt.astype(_ID), output.astype(_ID), logprobs.astype(_LOGPROB))
        data = b"".join(part.tobytes() for part in parts)
        offset, crc = self._file("turns", self._writer).append(data)
        return Block(offset, len(prompt), len(output), crc, self._writer)

    def read(self, block: Block) -> tuple[IdArray, IdArray, LogprobArray]:
        """Return prompt ids [n], output ids [m] and logprobs [m] of a turn, as read-only arrays."""
        data = self._file("turns", block.file).read(block.offset, block.size, block.crc)
        cut = (block.prompt + block.output) * _ID.itemsize
        ids = np.frombuffer(data, _ID, block.prompt + block.output)
        logprobs = np.frombuffer(data, _LOGPROB, block.output, cut)
        return ids[: block.prompt], ids[block.prompt :], logprobs

    def append_routing(self, experts: RoutingArray) -> tuple[int, int]:
        """Write one turn's routing, [rows, layers, top_k]; return its offset and CRC-32.

        It goes to the file of the writer of the turn, which is written first: the caller holds the
        lock already.
        """
        data = experts.astype(experts.dtype.newbyteorder("<")).tobytes()
        return self._file("routing", self._writer).append(data)

    def read_routing(
        self, offset: int, crc: int, shape: tuple[int, int, int], width: int, *, file: int
    ) -> RoutingArray:
        """Return one turn's routing as a read-only array; ``width``: bytes of an id, 1 or 2;
        ``file``: number of its writer.
        """
        kind = np.dtype("u1" if width == 1 else "<u2")
        data = self._file("routing", file).read(offset, int(np.prod(shape)) * width, crc)
        return np.frombuffer(data, kind).reshape(shape)

    def close(self) -> None:
        """Close the files; the locks go with them."""
        for file in self._files.values():
            file.close()

    def _file(self, content: Literal["turns", "routing"], writer: int) -> ArrayFile:
        file = self._files.get((content, writer))
        if file is None:
            name = f"{content}-{writer}.bin" if writer else f"{content}.bin"
            file = self._files[content, writer] = ArrayFile(self._directory / name)
        return file


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

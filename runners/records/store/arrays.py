"""Append-only files with the token ids and logprobs of every turn of a run.

Each process that adds turns has files of its own, by its number, and holds their locks; a row names
the file of its block (``array_file.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from runners.records.declaration import Column
from runners.records.record import IdArray, LogprobArray
from runners.records.store.array_file import ArrayFile
from runners.records.store.routing_files import RoutingFiles

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


class TurnArrays:
    """``arrays/turns.bin``: token ids and logprobs of every turn. That of another writer than 0 has
    its number in its name: ``turns-1.bin``. Routing has files of its own (``routing``).
    """

    def __init__(self, directory: Path) -> None:
        self.routing = RoutingFiles(directory)
        self._directory = directory
        self._files: dict[int, ArrayFile] = {}
        """By writer; opened on first use."""
        self._writer = 0

    def claim(self, wait_s: float = 0.0, *, writer: int = 0) -> None:
        """Take the lock of a writer's file, as ``ArrayFile.claim`` does, and append to that file
        from now on; it stands for the routing files too.
        """
        self._file(writer).claim(wait_s)
        self._writer = writer

    def append(self, *turns: tuple[IdArray, IdArray, LogprobArray]) -> list[Block]:
        """Write the arrays of some turns, int32 [n], int32 [m] and float32 [m] each; return their
        places.
        """
        written = self._file(self._writer).append(
            *(
                b"".join(
                    (
                        prompt.astype(_ID).tobytes(),
                        output.astype(_ID).tobytes(),
                        logprobs.astype(_LOGPROB).tobytes(),
                    )
                )
                for prompt, output, logprobs in turns
            )
        )
        return [
            Block(offset, len(prompt), len(output), crc, self._writer)
            for (prompt, output, _), (offset, crc) in zip(turns, written, strict=True)
        ]

    def read(self, block: Block) -> tuple[IdArray, IdArray, LogprobArray]:
        """Return prompt ids [n], output ids [m] and logprobs [m] of a turn, as read-only arrays."""
        data = self._file(block.file).read(block.offset, block.size, block.crc)
        cut = (block.prompt + block.output) * _ID.itemsize
        ids = np.frombuffer(data, _ID, block.prompt + block.output)
        logprobs = np.frombuffer(data, _LOGPROB, block.output, cut)
        return ids[: block.prompt], ids[block.prompt :], logprobs

    def close(self) -> None:
        """Close the files; the locks go with them."""
        self.routing.close()
        for file in self._files.values():
            file.close()

    def _file(self, writer: int) -> ArrayFile:
        file = self._files.get(writer)
        if file is None:
            name = f"turns-{writer}.bin" if writer else "turns.bin"
            file = self._files[writer] = ArrayFile(self._directory / name)
        return file

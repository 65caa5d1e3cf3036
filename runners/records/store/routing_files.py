"""Files with the routing of turns, each writer's in parts of a bounded size.

Routing is by far the largest of what a run stores: in parts it can be deleted once it is trained.
The parts of writer 0 are ``routing.bin``, ``routing.1.bin``, …, those of writer 2
``routing-2.bin``, ``routing-2.1.bin``, … Invariant: the newest part of a writer, which may grow, is
never deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runners.records.routing import RoutingArray
from runners.records.store.array_file import ArrayFile

PART_BYTES = 1 << 30
"""A part that has as much is followed by the next one."""
_NAME = re.compile(r"routing(?:-(?P<writer>\d+))?(?:\.(?P<part>\d+))?\.bin", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class RoutingPart:
    """A file of routing."""

    writer: int
    number: int
    """From 0."""

    @property
    def name(self) -> str:
        """The file's name."""
        writer = f"-{self.writer}" if self.writer else ""
        return f"routing{writer}.{self.number}.bin" if self.number else f"routing{writer}.bin"


class RoutingFiles:
    """The parts of a run's routing; its methods raise OSError and StoreError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[RoutingPart, ArrayFile] = {}
        """To which this process appends; opened on first use."""
        self._growing: dict[int, RoutingPart] = {}
        """By writer, the part to which this process appends."""

    def append(self, writer: int, *turns: RoutingArray) -> list[tuple[int, int, int]]:
        """Write the routing of some turns, [rows, layers, top_k] each; return part, offset and
        CRC-32 of each. It is one part: their rows may come together, after all of them, and the
        next part tells that the rows of this one are there.

        The caller holds the lock of the writer's other file already.
        """
        part = self._growing.get(writer)
        if part is None:
            part = max((each for each in self._list() if each.writer == writer), default=None)
            part = part or RoutingPart(writer, 0)
        file = self._file(part)
        file.claim()
        if file.end >= PART_BYTES:
            file.close()
            part = RoutingPart(writer, part.number + 1)
            file = self._file(part)
        self._growing[writer] = part
        blocks = (each.astype(each.dtype.newbyteorder("<")).tobytes() for each in turns)
        return [(part.number, offset, crc) for offset, crc in file.append(*blocks)]

    def read(
        self, part: RoutingPart, offset: int, crc: int, shape: tuple[int, int, int], width: int
    ) -> RoutingArray:
        """Return one turn's routing as a read-only array; ``width``: bytes of an id, 1 or 2."""
        kind = np.dtype("u1" if width == 1 else "<u2")
        # Not kept open: the driver may delete it, and its space would not be free before we end.
        file = ArrayFile(self._directory / part.name)
        try:
            data = file.read(offset, int(np.prod(shape)) * width, crc)
        finally:
            file.close()
        return np.frombuffer(data, kind).reshape(shape)

    def find_complete(self) -> dict[RoutingPart, Path]:
        """Return the parts to which nothing is appended any more: all but each writer's newest."""
        found = self._list()
        newest = {part.writer: part for part in sorted(found)}
        return {part: path for part, path in found.items() if newest[part.writer] != part}

    def close(self) -> None:
        """Close the files; the locks go with them."""
        for file in self._files.values():
            file.close()

    def _list(self) -> dict[RoutingPart, Path]:
        found = {}
        for path in self._directory.glob("routing*.bin"):
            if (match := _NAME.fullmatch(path.name)) is not None:
                found[RoutingPart(int(match["writer"] or 0), int(match["part"] or 0))] = path
        return found

    def _file(self, part: RoutingPart) -> ArrayFile:
        file = self._files.get(part)
        if file is None:
            file = self._files[part] = ArrayFile(self._directory / part.name)
        return file

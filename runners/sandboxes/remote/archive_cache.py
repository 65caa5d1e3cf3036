"""Keep the archives that sandboxes start from, so that a group of rollouts packs its source once.

Invariant: an archive is used only as long as everything that was packed is as it was then, to its
change time; nobody writes to an archive, and no sandbox can. The archives' directory is emptied
when the backend starts and ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

MOST_BYTES = 1 << 30
"""Of all archives that nobody uses; the one used longest ago goes first."""


def fingerprint(places: Iterable[tuple[str, Path]]) -> str:
    """Return a name for what files and trees of the host, by their paths inside, hold now.

    It follows from names, kinds, sizes, inodes and change times, as git's index does: reading all
    content would cost a third of packing it. Blocks; raises OSError.
    """
    state = hashlib.sha256()
    for inside, place in places:
        _add(state.update, inside, place.lstat())
        if place.is_dir() and not place.is_symlink():
            _add_directory(state.update, os.fspath(place))
    return state.hexdigest()


def _add_directory(add: Callable[[bytes], None], directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            _add(add, entry.path, entry.stat(follow_symlinks=False))
            if entry.is_dir(follow_symlinks=False):
                _add_directory(add, entry.path)


def _add(add: Callable[[bytes], None], name: str, info: os.stat_result) -> None:
    facts = (info.st_mode, info.st_size, info.st_dev, info.st_ino, info.st_mtime_ns)
    # The change time: it tells what was written in place with its old size and its old mtime.
    add(f"{name}\0{facts}{info.st_ctime_ns}\0".encode("utf-8", "surrogateescape"))


@dataclass(slots=True)
class _Archive:
    """An archive; mutated by the cache."""

    path: Path
    users: int = 0
    """Sandboxes that are being filled from it, or wait for it."""
    size: int = 0
    """In bytes; 0: it is not packed."""
    packing: asyncio.Lock = field(default_factory=asyncio.Lock)


class ArchiveCache:
    """The archives of one backend, in a directory of its own."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        directory.mkdir()
        self._directory = directory
        self._most_bytes = most_bytes
        self._archives: dict[str, _Archive] = {}
        """By name, the one used last at the end."""

    @asynccontextmanager
    async def use(self, name: str, pack: Callable[[Path], None]) -> AsyncIterator[Path]:
        """Yield the archive ``name``, which stays until the block ends; raises what ``pack`` does.

        ``pack`` is called in a thread, with the path of a file to be made in an empty directory,
        if there is no such archive; others that want the same one wait for it.
        """
        path = self._directory / f"{name}.tar.gz"
        archive = self._archives[name] = self._archives.pop(name, _Archive(path))
        archive.users += 1
        try:
            async with archive.packing:
                if not archive.size:
                    await self._pack(archive, pack)
            yield archive.path
        finally:
            archive.users -= 1
            self._evict()

    async def _pack(self, archive: _Archive, pack: Callable[[Path], None]) -> None:
        # If this task is cancelled the thread goes on, so it must not write to the final path.
        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            made = Path(directory) / archive.path.name
            await asyncio.to_thread(pack, made)
            archive.size = made.stat().st_size
            made.rename(archive.path)

    def _evict(self) -> None:
        """Remove the oldest archives that nobody uses, down to the limit."""
        unused = {name: each for name, each in self._archives.items() if not each.users}
        left = sum(each.size for each in unused.values())
        for name, archive in unused.items():
            if left <= self._most_bytes:
                break
            left -= archive.size
            archive.path.unlink(missing_ok=True)
            del self._archives[name]

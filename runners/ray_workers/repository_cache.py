"""Repositories on their way from the driver's machine to a node: what has no address of its own is
sent, once per node; a commit's id names its content.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from runners.processes.atomic_write import atomic_directory
from runners.sandboxes.contract import SandboxError
from runners.sandboxes.remote.archive import ArchiveWriter, unpack
from runners.tasks.contract import Task

REPO = "repo"

Ready = Callable[[Task], Awaitable[Task]]


def packed(repo: Path) -> bytes:
    """Return a repository as a compressed tar file; blocks, and raises OSError."""
    with tempfile.TemporaryDirectory(prefix="agentrl-parcel-") as scratch:
        archive = Path(scratch) / "repo.tar.gz"
        with ArchiveWriter(archive) as pack:
            pack.add_writable(REPO, repo)
        return archive.read_bytes()


class Parcels:
    """The repositories that a node was sent, below ``root``: each asked for once."""

    def __init__(self, root: Path, fetch: Callable[[str], Awaitable[bytes]], make: Ready) -> None:
        """``fetch`` asks the driver for a commit's repository; ``make`` makes those that have an
        address.
        """
        self._root = root
        self._fetch = fetch
        self._make = make
        self._line: dict[str, asyncio.Lock] = {}

    async def ready(self, task: Task) -> Task:
        """Return the task with its repository there; raises SandboxError."""
        if task.origin is not None:
            return await self._make(task)
        place = self._root / f"sent-{task.base_commit}"
        async with self._line.setdefault(task.base_commit, asyncio.Lock()):
            if not place.exists():
                content = await self._fetch(task.base_commit)
                await asyncio.to_thread(_keep, content, place)
        return replace(task, repo=place / REPO)


def _keep(content: bytes, place: Path) -> None:
    try:
        with atomic_directory(place) as made:
            archive = made / "repo.tar.gz"
            archive.write_bytes(content)
            unpack(archive, made)
            archive.unlink()
    except OSError as error:
        raise SandboxError(f"cannot keep a repository: {error}") from error

"""Send repositories from the driver's machine to a node, which keeps each of them.

Invariant: a repository is sent at most once per node, also over several runs: its directory bears
the name of its commit, whose id names its content. A repository with an address of its own is not
sent but made on the node.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from runners.sandboxes.contract import SandboxError
from runners.sandboxes.remote import ArchiveWriter, unpack
from runners.system.processes import atomic_directory
from runners.tasks.contract import Task
from runners.tasks.repositories.task_repositories import DELETED, HIDDEN

REPO = "repo"


def pack_repository(repo: Path) -> bytes:
    """Return a repository with its hidden tests as a compressed tar file.

    Blocks; raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-repository-") as scratch:
        archive = Path(scratch) / "repo.tar.gz"
        with ArchiveWriter(archive) as writer:
            writer.add_writable(REPO, repo)
            if (hidden := repo.with_name(HIDDEN)).exists():
                writer.add_writable(HIDDEN, hidden)
                writer.add_writable(DELETED, repo.with_name(DELETED))
        return archive.read_bytes()


class RepositoryCache:
    """The repositories below ``root`` that a node was sent."""

    def __init__(
        self,
        root: Path,
        download: Callable[[str], Awaitable[bytes]],
        make: Callable[[Task], Awaitable[Task]],
    ) -> None:
        """``download`` returns the archive of a commit's repository; ``make`` makes a repository
        that has an address.
        """
        self._root = root
        self._download = download
        self._make = make
        self._locks: dict[str, asyncio.Lock] = {}

    async def ready(self, task: Task) -> Task:
        """Return the task with its repository on this node; raises SandboxError."""
        if task.origin is not None:
            return await self._make(task)
        directory = self._root / f"sent-{task.base_commit}"
        async with self._locks.setdefault(task.base_commit, asyncio.Lock()):
            if not directory.exists():
                archive = await self._download(task.base_commit)
                await asyncio.to_thread(_unpack_into, directory, archive)
        hidden = None if task.hidden_tests is None else directory / HIDDEN
        return replace(task, repo=directory / REPO, hidden_tests=hidden)


def _unpack_into(directory: Path, content: bytes) -> None:
    try:
        with atomic_directory(directory) as unfinished:
            archive = unfinished / "repo.tar.gz"
            archive.write_bytes(content)
            unpack(archive, unfinished)
            archive.unlink()
    except OSError as error:
        raise SandboxError(f"cannot keep a repository: {error}") from error

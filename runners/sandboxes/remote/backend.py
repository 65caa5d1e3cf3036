"""Make sandboxes on machines that bear the run's tag: what all remote backends have in common."""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.sandboxes.contract import SandboxError
from runners.sandboxes.remote.archive_cache import ArchiveCache
from runners.sandboxes.tree import clear_directory, discard_tree


class RemoteBackend(ABC):
    """Makes sandboxes on machines that bear the run's tag; a provider is a subclass."""

    has_images = True

    def __init__(self, root: Path) -> None:
        """Read or make the run's tag in ``root``, and empty its directory for archives in transfer.

        The tag is the same for all drivers of the run. It is kept in the file ``mark``, so that a
        resumed run finds what an earlier driver left.
        """
        file = root / "mark"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(secrets.token_hex(16))
        self._tag = file.read_text()
        self._scratch = root.absolute() / "transit"  # git reads there from elsewhere
        self._scratch = clear_directory(self._scratch)
        self._archives = ArchiveCache(self._scratch / "archives")

    async def reap(self, leaked: Mapping[str, Mapping[str, Any]]) -> None:
        """End the machines of a dead driver of this run."""
        await self._end(set(leaked))

    async def close(self) -> None:
        """End every machine of this run."""
        await self._end(None)
        await asyncio.to_thread(discard_tree, self._scratch, self._scratch.parent)

    async def build_image(self, context: Path, tag: str, *, deadline_s: float) -> None:
        """Raise SandboxError: this provider takes images that exist."""
        raise SandboxError(
            "these sandboxes build no images: build the task's environment yourself and name it in "
            "[environment] docker_image, or choose sandbox=docker or podman"
        )

    @abstractmethod
    async def _end(self, names: set[str] | None) -> None:
        """End this run's machines with sandboxes of these names, or all; raises SandboxError."""

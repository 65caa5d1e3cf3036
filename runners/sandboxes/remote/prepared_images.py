"""Keep images of containers that were set up, from which the rest of a group starts.

A container gets its files one after the other, and one of an image with a repository has every file
of it copied for its new owner. Those that start from an image of such a container share all that.

Invariant: an image is committed before a command of an agent's has run, and only sandboxes that
would be set up equally start from it. No image is removed that a container uses.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

from runners.sandboxes.contract import SandboxError

MOST_UNUSED = 4
"""Images that no container uses; the one used longest ago goes first."""
REPOSITORY = "localhost/agentrl-prepared"

_log = logging.getLogger(__name__)


class Preparable(Protocol):
    """A container that is yet to be started."""

    async def start(self, image: str | None) -> None:
        """Start it, from a prepared image or to be set up; raises SandboxError."""
        ...

    async def commit(self, image: str) -> None:
        """Make an image of it; raises SandboxError."""
        ...

    async def terminate(self) -> None:
        """End it, or what a failed start left; raises SandboxError."""
        ...


@dataclass(slots=True)
class _Prepared:
    """Sandboxes that are set up equally, and their image; mutated by ``PreparedImages``."""

    image: str
    users: int = 0
    """Containers that started from it or wait for it, and the one that it was made of."""
    ready: bool = False
    refused: bool = False
    """It cannot be made, or nothing starts from it."""
    making: asyncio.Lock = field(default_factory=asyncio.Lock)


class PreparedImages:
    """The images that one backend has committed."""

    def __init__(
        self, tag: str, remove: Callable[[str], Awaitable[None]], most_unused: int = MOST_UNUSED
    ) -> None:
        """``remove`` removes an image by its name; what it raises as SandboxError is left."""
        self._name = f"{REPOSITORY}:{tag[:12]}"
        self._remove = remove
        self._most_unused = most_unused
        self._prepared: dict[str, _Prepared] = {}
        """By set-up, the one used last at the end."""
        self._numbers = itertools.count()
        self._warned = False

    async def start(self, setup: str, container: Preparable) -> Callable[[], None]:
        """Start a container as all of this ``setup``; return what tells that it has ended.

        The second one is committed, so that one without an equal costs nothing; those that come
        meanwhile wait. Raises SandboxError.
        """
        if setup not in self._prepared:
            self._prepared[setup] = _Prepared(f"{self._name}-{next(self._numbers)}")
            await container.start(None)
            return _nothing
        prepared = self._prepared[setup] = self._prepared.pop(setup)
        prepared.users += 1

        def release() -> None:
            prepared.users -= 1

        try:
            await self._start(prepared, container)
        except BaseException:
            release()
            raise
        await self._evict()
        return release

    async def _start(self, prepared: _Prepared, container: Preparable) -> None:
        async with prepared.making:
            if not prepared.ready and not prepared.refused:
                await container.start(None)
                try:
                    await container.commit(prepared.image)
                    prepared.ready = True
                except SandboxError as error:
                    self._refuse(prepared, error)
                return
        if not prepared.refused:
            try:
                await container.start(prepared.image)
            except SandboxError as error:  # somebody may have removed it
                self._refuse(prepared, error)
                await container.terminate()
            else:
                return
        await container.start(None)

    def _refuse(self, prepared: _Prepared, error: SandboxError) -> None:
        prepared.refused = True
        level = logging.DEBUG if self._warned else logging.WARNING
        _log.log(level, "sandboxes of a group are filled one by one, which is slower: %s", error)
        self._warned = True

    async def _evict(self) -> None:
        """Remove the oldest images that no container uses, down to the limit."""
        known = self._prepared.items()
        unused = [(setup, each) for setup, each in known if each.ready and not each.users]
        for setup, prepared in unused[: max(0, len(unused) - self._most_unused)]:
            del self._prepared[setup]  # first, so that nobody starts from it meanwhile
            with suppress(SandboxError):
                await self._remove(prepared.image)


def find_volume(paths: Iterable[str], mount_points: Iterable[str]) -> str | None:
    """Return a mount point at, above or below one of ``paths`` but for ``/``; None: there is none.

    What lies on a volume is in no image that is committed.
    """
    for point in map(PurePosixPath, mount_points):
        for path in map(PurePosixPath, paths):
            around = path.is_relative_to(point) or point.is_relative_to(path)
            if around and point != PurePosixPath("/"):
                return str(point)
    return None


def _nothing() -> None:
    """Tell nobody."""

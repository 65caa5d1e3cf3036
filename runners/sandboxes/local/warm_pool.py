"""SlotFactory made before anybody asks: while an engine computes, there is time to boot.

Nothing is shared: a room is taken once, by a sandbox that has the same mounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local.boot import Launcher
from runners.sandboxes.local.isolation import Place
from runners.sandboxes.local.rooms import SlotFactory

REST_S = 0.05
"""Until a taken room is made up for: who took it goes first."""
KINDS = 4
"""An agent's, a grader's, and those of a few tasks with other mounts."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What must be the same for a room to be used."""

    mounts: tuple[tuple[str, Path], ...]
    listens: bool

    @classmethod
    def of(cls, spec: SandboxSpec) -> Kind:
        """Return what a sandbox needs."""
        return cls(tuple(spec.mounts.items()), spec.network == "gateway")


@dataclass(frozen=True, slots=True)
class Room:
    """A place with an empty workspace, and the namespaces of its first command."""

    place: Place
    booted: Launcher


class WarmSandboxPool:
    """Keeps ``each`` rooms of each kind that was asked for lately."""

    def __init__(self, rooms: SlotFactory, directory: Path, each: int) -> None:
        self._rooms = rooms
        self._directory = directory
        self._each = each
        self._numbers = itertools.count()
        self._ready: dict[Kind, list[Room]] = {}
        self._making: Counter[Kind] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, kind: Kind) -> Room | None:
        """Return a room that is ready, if there is one; later there will be another."""
        if not self._each:
            return None
        ready = self._ready[kind] = self._ready.pop(kind, [])  # the latest comes last
        self._begin(self._refill(kind))
        while ready:
            room = ready.pop(0)
            if room.booted.alive():
                return room
            self._discard(room)
        return None

    async def close(self) -> None:
        """Discard what nobody took."""
        self._each = 0
        loop = asyncio.get_running_loop()
        making = {task for task in self._tasks if task.get_loop() is loop}
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        left = [room for rooms in self._ready.values() for room in rooms]
        self._ready.clear()
        await asyncio.gather(*(asyncio.to_thread(self._discard, room) for room in left))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        """Work aside. A task, not a timer: a loop that ends cancels its tasks, but runs its timers
        until its threads have ended, and those can be given nothing any more.
        """
        task = asyncio.get_running_loop().create_task(work, name="ahead")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refill(self, kind: Kind) -> None:
        await asyncio.sleep(REST_S)
        missing = self._each - len(self._ready.get(kind, ())) - self._making[kind]
        for _ in range(missing):
            self._making[kind] += 1
            self._begin(self._make(kind))

    async def _make(self, kind: Kind) -> None:
        place = Place(self._directory / f".ahead-{next(self._numbers)}", dict(kind.mounts))
        try:
            await asyncio.to_thread(self._rooms.make, place)
            room = Room(place, await self._rooms.boot(place, listens=kind.listens))
        except (OSError, SandboxError):  # who finds none makes one, and tells what is wrong
            await asyncio.to_thread(self._remove, place)
            return
        finally:
            self._making[kind] -= 1
        self._ready.setdefault(kind, []).append(room)
        while len(self._ready) > KINDS:
            forgotten = self._ready.pop(next(iter(self._ready)))
            for old in forgotten:  # none lives on if this is cancelled
                old.booted.kill()
            for old in forgotten:
                await asyncio.to_thread(self._discard, old)

    def _discard(self, room: Room) -> None:
        room.booted.discard()
        self._remove(room.place)

    def _remove(self, place: Place) -> None:
        with contextlib.suppress(OSError):  # the backend's directory goes later
            self._rooms.remove(place)

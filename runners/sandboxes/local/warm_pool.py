"""Make namespace slots, and keep some warm: booted before they are needed, while the engine works.

A slot is a sandbox's directory with an empty workspace, its control group, and the namespaces of
its first command. Nothing of an agent is in a warm slot, and it is used once, by a sandbox with the
same mounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local.confinement import PidsControlGroup, open_filter, set_limits
from runners.sandboxes.local.isolation import Isolation, SandboxHome
from runners.sandboxes.local.launch import Launcher, LaunchPlan, boot
from runners.sandboxes.tree import discard, discard_tree
from runners.system.processes import SANDBOX_TAG

REFILL_DELAY_S = 0.05
"""Until a slot that was taken is replaced: the sandbox that took it needs the CPU first."""
KEYS = 4
"""Keys with warm slots: an agent's, a grader's, and those of a few tasks with other mounts."""


class SlotFactory:
    """Makes the directories, control groups and namespaces of a backend's sandboxes."""

    def __init__(
        self,
        isolation: Isolation,
        config: LocalSandboxConfig,
        groups: PidsControlGroup | None,
        seccomp: Path | None,
        name: str,
        asides: Mapping[Path, Path],
    ) -> None:
        """``seccomp`` is the filter's file, if there is one (``write_filter``).

        ``name`` is the backend's process-unique name; every process is tagged with it. ``asides``:
        where to put what cannot be removed, by the parent of the sandboxes' directories.
        """
        self.isolation = isolation
        self._config = config
        self._groups = groups
        self._seccomp = seccomp
        self._name = name
        self._asides = asides
        self._numbers = itertools.count()

    def make_home(self, home: SandboxHome) -> None:
        """Make a sandbox's directories with an empty workspace; blocks, and raises OSError."""
        home.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.directory.mkdir(mode=0o700)
        home.workspace.mkdir()
        self.isolation.prepare(home)
        if self._groups is not None:
            self._groups.add(home.directory.name)

    def remove_unused(self, home: SandboxHome) -> None:
        """Remove those of a slot that nobody took; blocks, and raises OSError."""
        self._remove_group(home)
        discard_tree(home.directory, self._asides[home.directory.parent])

    async def remove_home(self, home: SandboxHome) -> None:
        """Remove them when nothing runs there any more; raises OSError.

        What cannot be removed is set aside with a warning.
        """
        await asyncio.to_thread(self._remove_group, home)
        await discard(home.directory, self._asides[home.directory.parent])

    def _remove_group(self, home: SandboxHome) -> None:
        if self._groups is not None:
            self._groups.remove(home.directory.name)

    async def boot(self, home: SandboxHome, *, listens: bool) -> Launcher:
        """Return namespaces for one command; raises SandboxError."""
        namespaced = self.isolation.namespaced
        tag = f"{self._name}/{next(self._numbers)}"

        def move_to_group(pid: int) -> None:
            if self._groups is not None:
                self._groups.move_process(home.directory.name, pid)

        with open_filter(self._seccomp) as handle:
            # bubblewrap and unshare_setup load the filter; without namespaces nothing would.
            seccomp_fd = handle if namespaced else None
            plan = LaunchPlan(
                argv=lambda launch, pid_fd: self.isolation.command_line(
                    home, launch, seccomp_fd, pid_fd
                ),
                env={**self.isolation.environment(home), SANDBOX_TAG: tag},
                cwd=None if namespaced else home.workspace,
                namespaced=namespaced,
                listens=listens,
                move_to_group=move_to_group,
                set_limits=lambda pid: set_limits(pid, self._config, namespaced=namespaced),
                inherit=() if seccomp_fd is None else (seccomp_fd,),
            )
            return await boot(plan)


@dataclass(frozen=True, slots=True)
class SlotKey:
    """The properties that a sandbox and its slot must share: namespaces cannot get mounts later."""

    mounts: tuple[tuple[str, Path], ...]
    listens: bool

    @classmethod
    def of(cls, spec: SandboxSpec) -> SlotKey:
        """Return the key of a sandbox."""
        return cls(tuple(spec.mounts.items()), spec.network == "gateway")


@dataclass(frozen=True, slots=True)
class NamespaceSlot:
    """A directory with an empty workspace, and the namespaces of its first command."""

    home: SandboxHome
    launcher: Launcher


class WarmSandboxPool:
    """Keeps ``size`` slots warm for each of the keys that were taken lately."""

    def __init__(self, factory: SlotFactory, directory: Path, size: int) -> None:
        self._factory = factory
        self._directory = directory
        self._size = size
        self._numbers = itertools.count()
        self._ready: dict[SlotKey, list[NamespaceSlot]] = {}
        """In the order of their last use, the latest last."""
        self._booting: Counter[SlotKey] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, key: SlotKey) -> NamespaceSlot | None:
        """Return a slot that is ready, None if there is none; either way more will be booted."""
        if not self._size:
            return None
        ready = self._ready[key] = self._ready.pop(key, [])
        self._start_task(self._refill(key))
        while ready:
            slot = ready.pop(0)
            if slot.launcher.alive():
                return slot
            self._discard(slot)
        return None

    async def close(self) -> None:
        """Discard the slots that nobody took."""
        self._size = 0
        loop = asyncio.get_running_loop()
        # A backend may outlive an event loop; that loop's tasks ended with it.
        booting = {task for task in self._tasks if task.get_loop() is loop}
        for task in booting:
            task.cancel()
        await asyncio.gather(*booting, return_exceptions=True)
        left = [slot for slots in self._ready.values() for slot in slots]
        self._ready.clear()
        await asyncio.gather(*(asyncio.to_thread(self._discard, slot) for slot in left))

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` in a task, and hold the task: the loop keeps only a weak reference.

        A task, not a timer: a loop that shuts down cancels its tasks, but goes on to run timers
        while it waits for its threads to end, and those accept no more work by then.
        """
        task = asyncio.get_running_loop().create_task(work, name="warm-pool")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refill(self, key: SlotKey) -> None:
        await asyncio.sleep(REFILL_DELAY_S)
        missing = self._size - len(self._ready.get(key, ())) - self._booting[key]
        for _ in range(missing):
            self._booting[key] += 1
            self._start_task(self._boot_slot(key))

    async def _boot_slot(self, key: SlotKey) -> None:
        home = SandboxHome(self._directory / f".warm-{next(self._numbers)}", dict(key.mounts))
        try:
            await asyncio.to_thread(self._factory.make_home, home)
            slot = NamespaceSlot(home, await self._factory.boot(home, listens=key.listens))
        except (OSError, SandboxError):
            # Not an error yet: a sandbox that finds no slot boots its own, and raises the reason.
            await asyncio.to_thread(self._remove, home)
            return
        finally:
            self._booting[key] -= 1
        self._ready.setdefault(key, []).append(slot)
        while len(self._ready) > KEYS:
            unused = self._ready.pop(next(iter(self._ready)))
            for old in unused:  # all at once: if this task is cancelled below, none lives on
                old.launcher.kill()
            for old in unused:
                await asyncio.to_thread(self._discard, old)

    def _discard(self, slot: NamespaceSlot) -> None:
        slot.launcher.discard()
        self._remove(slot.home)

    def _remove(self, home: SandboxHome) -> None:
        with contextlib.suppress(OSError):  # removed with the backend's directory later
            self._factory.remove_unused(home)

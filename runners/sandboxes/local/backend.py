"""The ``local`` backend: sandboxes of this machine's kernel, without a container engine.

Each command runs in namespaces of its own over the sandbox's workspace; between two commands
nothing of the agent's runs. A sandbox that finds a room made ahead has only its workspace to fill.
The strongest isolation that works here is found by trying it (``probe``), and ``guarantees`` says
what was seen to hold, not what should.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.sections.sandbox import LocalSandboxConfig
from runners.processes.process_names import make_unique_name
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local import resource_limits as cgroup
from runners.sandboxes.local import shared_memory as memory
from runners.sandboxes.local.bubblewrap import Bubblewrap
from runners.sandboxes.local.isolation import Interior, Isolation, Place
from runners.sandboxes.local.orphans import end_orphans
from runners.sandboxes.local.plain import Plain
from runners.sandboxes.local.probe import PROBE, ProbeFindings, look, say
from runners.sandboxes.local.rooms import SlotFactory
from runners.sandboxes.local.sandbox import LocalSandbox
from runners.sandboxes.local.seccomp import SeccompFilter
from runners.sandboxes.local.unshare import Unshare
from runners.sandboxes.local.warm_pool import Kind, WarmSandboxPool
from runners.sandboxes.tree import remove_tree

ISOLATIONS: dict[str, Callable[[Interior], Isolation]] = {
    "bubblewrap": Bubblewrap,
    "unshare": Unshare,
    "none": Plain,
}
"""Strongest first: the order in which ``isolation=auto`` tries them."""

MEND = {
    "bubblewrap": "install it (apt install bubblewrap) or set sandbox.isolation=auto",
    "unshare": "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or set "
    "sandbox.isolation=auto",
    "none": "set sandbox.isolation=auto",
}
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


class LocalBackend:
    """Sandboxes below one directory; choosing the isolation takes about 0.2 s and blocks."""

    has_images = False

    def __init__(self, config: LocalSandboxConfig, root: Path) -> None:
        """Begin with nothing: what killed drivers left on this machine is ended and removed."""
        self._config = config
        self._root = root.absolute()
        self._open: dict[str, LocalSandbox] = {}
        self._small: dict[Path, bool] = {}
        self._name = make_unique_name()
        try:
            end_orphans()
            remove_tree(self._root)
            self._root.mkdir(parents=True)
            self._interior = Interior.make(self._root / "shared")
        except OSError as error:
            with suppress(OSError):  # gives the room of a half-made one back
                remove_tree(self._root)
            reasons = error.args[0] if isinstance(error, shutil.Error) else [error]
            raise SandboxError(f"cannot prepare {self._root}: {reasons[0]}") from error
        self._memory = memory.claim(self._name)
        self._groups = cgroup.PidsControlGroup.find(self._name, config.processes)
        self.deny_list = SeccompFilter.write(self._interior.root / "seccomp.bpf")
        try:
            self._rooms, self._findings = self._choose()
        except BaseException:
            self._remove()
            raise
        self._ahead = WarmSandboxPool(self._rooms, self._memory or self._root / "open", config.warm)

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """Copy the source into a fresh workspace; see the contract."""
        if not _SAFE_NAME.fullmatch(spec.name):
            raise SandboxError(f"{spec.name!r} is no name for a sandbox: letters, digits, '._-'")
        if spec.name in self._open:
            raise SandboxError(f"there is a sandbox {spec.name} already")
        if spec.image is not None or spec.source is None:
            raise SandboxError("sandbox=local has no images: choose sandbox=docker or sandbox=e2b")
        if spec.source not in self._small:
            self._small[spec.source] = await asyncio.to_thread(memory.fits, spec.source)
            if spec.name in self._open:  # since we looked
                raise SandboxError(f"there is a sandbox {spec.name} already")
        fits = self._small[spec.source] or self._memory is None
        room = self._ahead.take(Kind.of(spec)) if fits else None
        place, booted = Place(self._home(spec), spec.mounts), None
        if room is not None:
            place, booted = room.place, room.booted
        sandbox = LocalSandbox(self._rooms, spec, place, booted, self._forget)
        self._open[spec.name] = sandbox
        try:
            await sandbox.open()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def guarantees(self) -> dict[str, str]:
        """Return what holds here, as the probe saw it."""
        said = say(
            self._rooms.isolation.name, self._findings, self._config, groups=bool(self._groups)
        )
        small = f"in memory up to {memory.LARGEST_SOURCE >> 20} MB, else "
        return {**said, "workspaces": f"{small if self._memory else ''}below {self._root}"}

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """Do nothing: what killed drivers left here was ended when this backend was made."""

    async def close(self) -> None:
        """Remove every sandbox that is left, and the shared files."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        await self._ahead.close()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        if self._groups is not None:
            self._groups.close()
        for directory in (self._root, self._memory):
            if directory is not None:
                remove_tree(directory)

    def _home(self, spec: SandboxSpec) -> Path:
        """Return the private directory of a sandbox: in memory if its source is small."""
        if self._memory is not None and spec.source and self._small[spec.source]:
            return self._memory / spec.name
        return self._root / "open" / spec.name

    def _forget(self, name: str) -> None:
        """Take a closed sandbox off the list."""
        self._open.pop(name, None)

    # --- choosing ------------------------------------------------------------------------------

    def _choose(self) -> tuple[SlotFactory, ProbeFindings]:
        wanted = self._config.isolation
        failures = []
        for name, make in ISOLATIONS.items():
            if wanted not in ("auto", name):
                continue
            isolation = make(self._interior)
            rooms = SlotFactory(isolation, self._config, self._groups, self.deny_list, self._name)
            try:
                findings = self._probe(rooms)
            except SandboxError as error:
                failures.append(f"{name}: {error}")
                continue
            if name == "none":
                _warn(failures)
            return rooms, findings
        mend = MEND.get(wanted, "see the reasons")
        raise SandboxError(
            f"sandbox.isolation={wanted} does not work here: {'; '.join(failures)}; {mend}"
        )

    def _probe(self, rooms: SlotFactory) -> ProbeFindings:
        isolation = rooms.isolation
        if (
            isolation.namespaced
            and shutil.which({"bubblewrap": "bwrap", "unshare": "unshare"}[isolation.name]) is None
        ):
            raise SandboxError("not installed")

        async def trial() -> ProbeFindings:
            source = self._root / "probe"
            source.mkdir(exist_ok=True)
            spec = SandboxSpec("probe", source, "none", mounts={"/opt/probe/probe.py": PROBE})
            place = Place(self._root / "open" / spec.name, spec.mounts)
            sandbox = LocalSandbox(rooms, spec, place, None, self._forget)
            await sandbox.open()
            try:
                return await look(sandbox, self._root, isolation, self._config.processes)
            finally:
                await sandbox.close()

        return _run_aside(trial)


def _run_aside(work: Callable[[], Coroutine[None, None, ProbeFindings]]) -> ProbeFindings:
    """Run a coroutine to its end in a thread of its own: the caller may have a running loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


def _warn(failures: list[str]) -> None:
    """Say loudly that agents will run as ordinary processes of this user."""
    lines = [
        "WARNING: sandboxes are NOT isolated. Agent programs run as plain processes of this user:",
        "they can write every file you can, use the network, and see your processes.",
        *(f"  tried {failure}" for failure in failures),
        "Mend: apt install bubblewrap.",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)

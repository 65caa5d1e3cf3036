"""The ``local`` backend: sandboxes of this machine's kernel, without a container engine.

The strongest isolation that works here is found by trying it (``probe``), and ``guarantees``
reports what the trial showed. A sandbox that finds a warm slot only has its workspace to fill.

Small workspaces are kept in memory: on disk, creating their files costs more than the sandbox does.
Each backend has a directory below /dev/shm under its process-unique name (``process_names``), so a
later backend removes what a killed one left.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.sections.sandbox import LocalSandboxConfig
from conf.sections.section import SERVER_KEYS
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local.confinement import (
    PidsControlGroup,
    remove_stale_groups,
    write_filter,
)
from runners.sandboxes.local.isolation import ISOLATIONS, WORKDIR, Interior, SandboxHome
from runners.sandboxes.local.memory_room import memory_room
from runners.sandboxes.local.probe import MOUNTS, describe_guarantees, probe_isolation
from runners.sandboxes.local.sandbox import LocalSandbox
from runners.sandboxes.local.warm_pool import SlotFactory, SlotKey, WarmSandboxPool
from runners.sandboxes.tree import clear_directory, discard_tree
from runners.system.processes import PREFIX, SANDBOX_TAG, is_stale, kill_tagged, make_unique_name

PROGRAMS = {"bubblewrap": "bwrap", "unshare": "unshare"}
HINTS = {
    "bubblewrap": "install it (apt install bubblewrap) or set sandbox.isolation=auto",
    "unshare": "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or set "
    "sandbox.isolation=auto",
    "none": "set sandbox.isolation=auto",
}
SHARED_MEMORY = Path("/dev/shm")
LEAST_FREE = 1 << 30
"""Bytes free in /dev/shm below which it is left to others; containers often have 64 MB."""
LEAST_MEMORY = 4 << 30
"""Bytes of memory left, in the machine or in the driver's control group, below which workspaces are
kept on the disk.
"""
LARGEST_SOURCE = 16 << 20
"""Bytes of a source that is copied into memory for each sandbox; hundreds may be open at once."""
MOST_ENTRIES = 4000
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


def remove_stale_resources() -> None:
    """Kill the processes that killed drivers left in sandboxes, whichever run they belonged to,
    and remove their control groups and directories.

    What cannot be ended or removed is reported, and is no error: a later run must start.
    """
    remove_stale_groups()  # first: a process can clear its environment, but not leave its group
    try:
        kill_tagged(SANDBOX_TAG, lambda tag: is_stale(tag.partition("/")[0]))
    except TimeoutError as error:
        print(f"WARNING: of an earlier run's sandboxes, {error}", file=sys.stderr, flush=True)
    remove_stale_directories()


def claim_directory(name: str) -> Path | None:
    """Make a directory in memory and return it.

    None where little memory is left, or /dev/shm is missing, nearly full, or mounted noexec: a
    workspace holds programs.
    """
    try:
        here = os.statvfs(SHARED_MEMORY)
        if here.f_bavail * here.f_frsize < LEAST_FREE or here.f_flag & os.ST_NOEXEC:
            return None
        if memory_room() < LEAST_MEMORY:
            return None
        directory = SHARED_MEMORY / name
        directory.mkdir(mode=0o700)
    except OSError:
        return None
    return directory


def is_small(source: Path) -> bool:
    """Return whether a source is small enough to be copied into memory for each sandbox."""
    size = entries = 0
    for directory, names, files in os.walk(source):
        entries += len(names) + len(files)
        with suppress(OSError):
            size += sum((Path(directory) / name).lstat().st_size for name in files)
        if size > LARGEST_SOURCE or entries > MOST_ENTRIES:
            return False
    return True


def remove_stale_directories() -> None:
    """Remove the directories of backends whose process was killed."""
    for directory in SHARED_MEMORY.glob(f"{PREFIX}*"):
        if is_stale(directory.name):
            with suppress(OSError):  # another user's
                discard_tree(directory, SHARED_MEMORY)


def lay_out(directory: Path, spec: SandboxSpec) -> SandboxHome:
    """Return the layout of a sandbox in its private directory."""
    trees = {inside: directory / "trees" / str(n) for n, inside in enumerate(spec.trees)}
    return SandboxHome(directory, spec.mounts, spec.workdir or WORKDIR, trees)


class LocalBackend:
    """Sandboxes below one directory; choosing the isolation takes about 0.2 s and blocks."""

    has_images = False

    def __init__(self, config: LocalSandboxConfig, root: Path) -> None:
        """Remove what killed drivers left on this machine, then choose the isolation.

        Raises SandboxError if none works.
        """
        self._config = config
        self._root = root.absolute()
        self._open: dict[str, LocalSandbox] = {}
        self._small: dict[Path, bool] = {}
        """By source: whether its copies fit into memory."""
        self._name = make_unique_name()
        try:
            remove_stale_resources()
            self._root = clear_directory(self._root)
            self._interior = Interior.make(self._root / "shared")
        except OSError as error:
            with suppress(OSError):  # on a full disk: free what the half-made one takes
                discard_tree(self._root, self._root.parent)
            reasons = error.args[0] if isinstance(error, shutil.Error) else [error]
            raise SandboxError(f"cannot prepare {self._root}: {reasons[0]}") from error
        self._memory = claim_directory(self._name)
        self._groups = PidsControlGroup.create(self._name, config.processes)
        self._seccomp = write_filter(self._interior.root / "seccomp.bpf")
        try:
            self._factory, self._held = self._choose()
        except BaseException:
            self._remove()
            raise
        directory = self._memory or self._root / "open"
        self._pool = WarmSandboxPool(self._factory, directory, config.warm)

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """Copy the source into a fresh workspace; see the contract."""
        if not _SAFE_NAME.fullmatch(spec.name):
            raise SandboxError(f"{spec.name!r} is no name for a sandbox: letters, digits, '._-'")
        self._refuse_open(spec.name)
        if spec.image is not None or spec.source is None:
            raise SandboxError(
                "sandbox=local has no images: choose docker, podman, apptainer or e2b"
            )
        if spec.source not in self._small:
            self._small[spec.source] = await asyncio.to_thread(is_small, spec.source)
            self._refuse_open(spec.name)  # another one may have opened during the await
        # Warm slots lie in memory where there is any: a large source must not be copied into one.
        fits = self._small[spec.source] or self._memory is None
        alike = not spec.trees and spec.workdir is None  # a warm slot is laid out as most are
        slot = self._pool.take(SlotKey.of(spec)) if fits and alike else None
        home, launcher = lay_out(self._directory(spec), spec), None
        if slot is not None:
            home, launcher = slot.home, slot.launcher
        sandbox = LocalSandbox(self._factory, spec, home, launcher, self._forget)
        self._open[spec.name] = sandbox
        try:
            await sandbox.open()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def build_image(self, context: Path, tag: str, *, deadline_s: float) -> None:
        """Raise SandboxError: there are no images."""
        raise SandboxError("sandbox=local builds no images: choose sandbox=docker or podman")

    def guarantees(self) -> dict[str, str]:
        """Return what holds here, as the probe found it."""
        found = describe_guarantees(
            self._factory.isolation.name, self._held, self._config, groups=bool(self._groups)
        )
        small = f"in memory up to {LARGEST_SOURCE >> 20} MB, else "
        return {**found, "workspaces": f"{small if self._memory else ''}below {self._root}"}

    async def reap(self, leaked: Mapping[str, Mapping[str, Any]]) -> None:
        """Do nothing: the constructor has removed what killed drivers left on this machine."""

    async def close(self) -> None:
        """Remove every sandbox that is left, and the shared files."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        await self._pool.close()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        if self._groups is not None:
            self._groups.close()
        for directory in (self._root, self._memory):
            if directory is not None:
                discard_tree(directory, directory.parent)

    def _asides(self) -> dict[Path, Path]:
        """Return where to put what cannot be removed, by the parent of a sandbox's directory."""
        asides = {self._root / "open": self._root.parent}
        if self._memory is not None:
            asides[self._memory] = self._memory.parent
        return asides

    def _directory(self, spec: SandboxSpec) -> Path:
        """Return the private directory of a sandbox: in memory if its source is small."""
        if self._memory is not None and spec.source and self._small[spec.source]:
            return self._memory / spec.name
        return self._root / "open" / spec.name

    def _refuse_open(self, name: str) -> None:
        if name in self._open:
            raise SandboxError(f"there is a sandbox {name} already")

    def _forget(self, name: str) -> None:
        """Remove a closed sandbox from the list."""
        self._open.pop(name, None)

    # --- choosing ------------------------------------------------------------------------------

    def _choose(self) -> tuple[SlotFactory, dict[str, bool]]:
        """Return the strongest isolation that works and what it holds; raises SandboxError."""
        wanted = self._config.isolation
        failures = []
        for name, make in ISOLATIONS.items():
            if wanted not in ("auto", name):
                continue
            factory = SlotFactory(
                make(self._interior),
                self._config,
                self._groups,
                self._seccomp,
                self._name,
                self._asides(),
            )
            try:
                held = self._probe(factory)
            except SandboxError as error:
                failures.append(f"{name}: {error}")
                continue
            if name == "none":
                _refuse_key()
                _warn(failures)
            return factory, held
        hint = HINTS.get(wanted, "see the reasons")
        raise SandboxError(
            f"sandbox.isolation={wanted} does not work here: {'; '.join(failures)}; {hint}"
        )

    def _probe(self, factory: SlotFactory) -> dict[str, bool]:
        isolation = factory.isolation
        if isolation.namespaced and shutil.which(PROGRAMS[isolation.name]) is None:
            raise SandboxError("not installed")

        async def run_probe() -> dict[str, bool]:
            source = self._root / "probe"
            source.mkdir(exist_ok=True)
            spec = SandboxSpec("probe", source, "none", mounts=MOUNTS)
            home = SandboxHome(self._root / "open" / spec.name, spec.mounts)
            sandbox = LocalSandbox(factory, spec, home, None, self._forget)
            await sandbox.open()
            try:
                return await probe_isolation(
                    sandbox,
                    self._root,
                    self._config.processes,
                    namespaced=isolation.namespaced,
                )
            finally:
                await sandbox.close()

        with ThreadPoolExecutor(1) as thread:  # the caller may have a running loop
            return thread.submit(lambda: asyncio.run(run_probe())).result()


def _refuse_key() -> None:
    """Raise SandboxError if agents, as processes of this user, could read the key of a server."""
    for key in filter(os.environ.get, SERVER_KEYS):
        raise SandboxError(
            f"without isolation the agent's commands could read {key} in the environment of "
            "this process: install bubblewrap, or unset it if the server wants no key"
        )


def _warn(failures: list[str]) -> None:
    """Print that agents will run as ordinary processes of this user."""
    lines = [
        "WARNING: sandboxes are NOT isolated. Agent programs run as plain processes of this user:",
        "they can write every file you can, use the network, and see your processes.",
        *(f"  tried {failure}" for failure in failures),
        "Fix: apt install bubblewrap.",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)

"""The ``custom`` backend: machines that a plug-in of the user's own starts, calls and ends.

The plug-in knows how its machines are reached; what a sandbox promises (the agent's user, the end
of everything that a command started, archives in and out) is ``RemoteSandbox``'s.
"""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from conf.sections.sandbox import CustomSandboxConfig
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.backend import RemoteBackend
from runners.sandboxes.remote.machine import BusyError
from runners.sandboxes.remote.sandbox import RemoteSandbox
from runners.system.plugins import PluginFailedError, call_plugin, load_plugin

Result = TypeVar("Result")
START_S = 600.0
"""To start a machine; its image may have to be pulled first."""
CALL_S = 60.0
COPY_S = 300.0


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """A machine that is wanted for a sandbox."""

    name: str
    """Unique, of letters, digits and hyphens; it says which run the machine belongs to."""
    image: str | None
    """Image that the task names; None: the provider's own."""
    network: Literal["gateway", "none"]
    """"gateway": it has to reach ``gateway_url``, and nothing else; "none": nothing at all."""
    gateway_url: str | None
    """None with network="none"."""
    allowed_hosts: tuple[str, ...] | None
    """Hosts that the task allows besides the gateway; None: it says nothing about hosts."""
    denied_hosts: tuple[str, ...]
    """Hosts, with their subdomains, where the task's fix can be had."""


class MachineProvider(Protocol):
    """Starts machines and calls them by name; each method may be ``async def`` or ``def``.

    Every call may be repeated, also while the former one still runs. Whatever a method raises is a
    failure of the sandbox, not of the policy.
    """

    def start(self, request: MachineRequest) -> Awaitable[None] | None:
        """Start a machine with a shell, coreutils, ``setpriv``, ``setsid`` and ``tar``."""
        ...

    def run_script(self, name: str, script: str, deadline_s: float) -> Awaitable[bytes] | bytes:
        """Run ``sh -c script`` as root and return its output; raise unless its exit code is 0."""
        ...

    def write_file(self, name: str, path: str, source: Path) -> Awaitable[None] | None:
        """Copy a file of this machine there, as root; its directory exists."""
        ...

    def read_file(self, name: str, path: str, target: Path) -> Awaitable[None] | None:
        """Copy a file from there to this machine."""
        ...

    def find(self, prefix: str) -> Awaitable[Collection[str]] | Collection[str]:
        """Return the names of the machines that run and begin so, whoever started them."""
        ...

    def end(self, name: str) -> Awaitable[None] | None:
        """End a machine with all that runs there; one that is gone is no error."""
        ...


class ProvidedBackend(RemoteBackend):
    """Machines of one run at a provider of the user's own."""

    def __init__(self, config: CustomSandboxConfig, root: Path) -> None:
        """``root`` keeps the run's tag, and archives in transfer. Raises PluginError."""
        super().__init__(root)
        self.has_images = config.has_images
        self._target = config.target
        self._provider: MachineProvider = load_plugin(config, MachineProvider, "sandbox")

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Start a machine and copy the workspace there; see the contract."""
        name = self._machine_name(spec.name)
        machine = _ProvidedMachine(self._provider, self._target, name, self._scratch)
        sandbox = RemoteSandbox(spec, machine, self._scratch, self._archives)
        request = MachineRequest(
            name,
            spec.image,
            spec.network,
            sandbox.gateway_url,
            spec.egress_hosts,
            spec.denied_hosts,
        )
        try:
            await machine.call(self._provider.start, request, deadline_s=START_S)
            await sandbox.open()
        except BaseException:
            with suppress(SandboxError):  # what is left is found by its name
                await sandbox.close()
            raise
        return sandbox

    def guarantees(self) -> dict[str, str]:
        """Return the promises; those of the provider cannot be known."""
        provider = f"as {self._target} makes its machines"
        return {
            "isolation": provider,
            "no network but the gateway": f"{provider}; graders ask for none at all",
            "complete kill": "by user id, and with the machine",
            "no root rights inside": "a user of our own, with no-new-privileges",
            "processes": provider,
            "memory": provider,
        }

    def _machine_name(self, name: str) -> str:
        return f"agentrl-{self._tag[:12]}-{name}"

    async def _end(self, names: set[str] | None) -> None:
        """End this run's machines with sandboxes of these names, or all."""
        prefix = self._machine_name("")
        any_machine = _ProvidedMachine(self._provider, self._target, prefix, self._scratch)
        ours = {name for name in await any_machine.find(prefix) if name.startswith(prefix)}
        if names is not None:
            ours &= {self._machine_name(name) for name in names}
        await asyncio.gather(
            *(any_machine.call(self._provider.end, name, deadline_s=CALL_S) for name in ours)
        )


class _ProvidedMachine:
    """One machine of a provider."""

    def __init__(self, provider: MachineProvider, target: str, name: str, scratch: Path) -> None:
        self._provider = provider
        self._target = target
        self._name = name
        self._scratch = scratch

    async def call(
        self, method: Callable[..., Awaitable[Result] | Result], *args: Any, deadline_s: float
    ) -> Result:
        """Call a method of the provider; raises SandboxError for whatever it raises."""
        name = f"sandbox.target={self._target}: {method.__name__}"
        try:
            return await call_plugin(name, method, *args, deadline_s=deadline_s)
        except PluginFailedError as error:
            raise SandboxError(str(error)) from error

    async def find(self, prefix: str) -> Collection[str]:
        """Return the names of machines that run; raises SandboxError."""
        found: object = await self.call(self._provider.find, prefix, deadline_s=CALL_S)
        names = set(found) if isinstance(found, Collection) and not isinstance(found, str) else None
        if names is None or not all(isinstance(name, str) for name in names):
            raise SandboxError(
                f"sandbox.target={self._target}: find returned {found!r:.200}, and has to return "
                "names of machines"
            )
        return names

    async def run_script(self, script: str, *, deadline_s: float) -> bytes:
        """Run a script as root; see the contract."""
        run = self._provider.run_script
        try:
            printed = await self.call(run, self._name, script, deadline_s, deadline_s=deadline_s)
        except SandboxError as error:
            if self._name in await self.find(self._name):
                raise BusyError(str(error)) from error
            raise
        if not isinstance(printed, bytes):
            raise SandboxError(
                f"sandbox.target={self._target}: run_script returned {type(printed).__name__}, and "
                "has to return what the script printed, as bytes"
            )
        return printed

    async def write_file(self, path: str, content: bytes | Path) -> None:
        """Write a file as root; see the contract."""
        await self.run_script(f"mkdir -p {shlex.quote(path.rpartition('/')[0])}", deadline_s=CALL_S)
        write = self._provider.write_file
        if isinstance(content, Path):
            await self.call(write, self._name, path, content, deadline_s=COPY_S)
            return
        with tempfile.NamedTemporaryFile(dir=self._scratch) as file:
            file.write(content)
            file.flush()
            await self.call(write, self._name, path, Path(file.name), deadline_s=COPY_S)

    async def read_file(self, path: str, target: Path) -> None:
        """Copy a file to the host; see the contract."""
        await self.call(self._provider.read_file, self._name, path, target, deadline_s=COPY_S)

    async def terminate(self) -> None:
        """End it; see the contract."""
        await self.call(self._provider.end, self._name, deadline_s=CALL_S)

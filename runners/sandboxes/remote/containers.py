"""The ``docker`` and ``podman`` backends: containers of the engine that the program of that name
reaches.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from conf.sections.sandbox import ContainerSandboxConfig
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.backend import RemoteBackend
from runners.sandboxes.remote.container_program import (
    build_argv,
    commit_argv,
    container_name,
    exec_argv,
    find_image_argv,
    inspect_argv,
    list_argv,
    list_images_argv,
    qualify_image,
    remove_argv,
    remove_image_argv,
    run_argv,
    state_argv,
)
from runners.sandboxes.remote.egress import (
    EgressAccount,
    EgressPolicy,
    EgressProxy,
    find_gateway_host,
    narrow_hosts,
)
from runners.sandboxes.remote.prepared_images import PreparedImages, find_volume
from runners.sandboxes.remote.program_machine import CALL_S, ProgramMachine, run_program
from runners.sandboxes.remote.sandbox import RemoteSandbox

PULL_S = 600.0
"""To start a container, whose image may have to be pulled first; to make an image of one."""
LIST_MOUNTS = "cut -d ' ' -f 5 /proc/self/mountinfo"
NOT_FOUND = "no such container"
"""In the error for a container that is gone, but for capitals; there is no exit code for it."""
INTERNAL = (
    ", by a proxy that records attempts; what listens on this machine at the address of the "
    "network {config.network} is reached too; graders have no network"
)
EGRESS = {
    "none": f"no other host{INTERNAL}",
    "allow": f"and {{config.egress_hosts}}{INTERNAL}",
    "log": f"NOT KEPT: all public hosts but the task's own{INTERNAL}",
    "open": "NOT KEPT for agents: what the network {config.network} leads to, unrecorded; "
    "graders have no network",
}
"""The part of the promise that is kept, by ``sandbox.egress``."""


class ContainerBackend(RemoteBackend):
    """Containers of one run."""

    def __init__(self, config: ContainerSandboxConfig, root: Path) -> None:
        """``root`` keeps the run's tag, and archives in transfer."""
        super().__init__(root)
        self._config = config
        self._program = config.kind
        self._proxy = EgressProxy()
        self._closed_network = False
        self._builds: dict[str, asyncio.Lock] = {}
        """By tag: held while an image is built."""
        self._images: dict[str, str] = {}
        """Names that containers are started with, by the names that tasks have for them."""
        self._prepared = PreparedImages(self._tag, self._remove_image)

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Start a container and copy the workspace there; see the contract."""
        container = _Container(self._program, container_name(self._tag, spec.name))
        place, ends = (self._scratch, self._archives), ExitStack()
        if spec.network == "gateway" and self._config.egress != "open":
            account, spec = await self._control_egress(spec)
            ends.callback(self._proxy.close_account, account)
            sandbox = RemoteSandbox(spec, container, *place, ends.close, account.attempts)
        else:
            sandbox = RemoteSandbox(spec, container, *place, ends.close)
        try:
            image = await self._find_image(spec.image or self._config.image)
            start = _Start(self._config, self._tag, image, sandbox, container, self._scratch)
            if (setup := await sandbox.setup.name()) is None:
                await start.start(None)
            else:
                ends.callback(await self._prepared.start(f"{image} {setup}", start))
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _find_image(self, name: str) -> str:
        """Return the name by which the engine has or pulls an image."""
        if self._program == "docker":
            return name
        if name not in self._images:
            argv = find_image_argv(self._program, name)
            here = (await run_program(argv, deadline_s=CALL_S)).strip()
            self._images[name] = name if here else qualify_image(name)
        return self._images[name]

    async def _control_egress(self, spec: SandboxSpec) -> tuple[EgressAccount, SandboxSpec]:
        """Open an agent's account with the proxy; raises SandboxError if it could go around it."""
        config, host = self._config, find_gateway_host(spec.gateway_url)
        if not self._closed_network:
            argv = inspect_argv(self._program, config.network)
            printed = await run_program(argv, deadline_s=CALL_S)
            if printed.strip() != b"true":
                raise SandboxError(
                    f"sandbox.egress={config.egress} needs a network that leads to this machine "
                    f"alone, and sandbox.network={config.network} leads further: "
                    f"`{self._program} network create --internal NAME`, sandbox.network=NAME and "
                    "gateway.public_url at that network's gateway address; or sandbox.egress=open"
                )
            self._closed_network = True
        await self._proxy.start(host)
        allowed = {"none": (), "allow": config.egress_hosts, "log": None}[config.egress]
        hosts = narrow_hosts(allowed, spec.egress_hosts)
        account = self._proxy.open_account(EgressPolicy(hosts, spec.denied_hosts))
        env = {**spec.env, **self._proxy.environment(account, host)}
        return account, replace(spec, env=env)

    async def build_image(self, context: Path, tag: str, *, deadline_s: float) -> None:
        """Build an image unless the engine has it; see the contract."""
        async with self._builds.setdefault(tag, asyncio.Lock()):
            argv = find_image_argv(self._program, tag)
            if not (await run_program(argv, deadline_s=CALL_S)).strip():
                await run_program(build_argv(self._program, context, tag), deadline_s=deadline_s)

    async def close(self) -> None:
        """End every container of this run, and the proxy; remove the images made of them."""
        await self._proxy.close()
        await super().close()
        listing = await run_program(list_images_argv(self._program, self._tag), deadline_s=CALL_S)
        await asyncio.gather(*(self._remove_image(each) for each in set(listing.decode().split())))

    async def _remove_image(self, image: str) -> None:
        await run_program(remove_image_argv(self._program, image), deadline_s=CALL_S)

    def guarantees(self) -> dict[str, str]:
        """Return the promises of containers; none of them is probed."""
        return {
            "isolation": "a container each, on the engine's kernel",
            "no network but the gateway": EGRESS[self._config.egress].format(config=self._config),
            "complete kill": "by user id, and with the container",
            "no root rights inside": "a user of our own, with no-new-privileges",
            "processes": f"{self._config.processes} per sandbox",
            "memory": f"{self._config.memory_mb} MB per sandbox",
        }

    async def _end(self, names: set[str] | None) -> None:
        """Remove this run's containers of these names, or all."""
        listing = await run_program(list_argv(self._program, self._tag), deadline_s=CALL_S)
        found = set(listing.decode().split())
        if names is not None:
            found &= {container_name(self._tag, name) for name in names}
        await asyncio.gather(*(_Container(self._program, each).terminate() for each in found))


@dataclass(frozen=True, slots=True)
class _Start:
    """A sandbox whose container is yet to be started."""

    config: ContainerSandboxConfig
    tag: str
    image: str
    sandbox: RemoteSandbox
    container: _Container
    scratch: Path

    async def start(self, image: str | None) -> None:
        """Start its container, from an image of an equal one or to be set up here."""
        argv = run_argv(self.config, self.sandbox.spec, self.tag, image or self.image)
        # podman leaves a file `oom` in the directory where it ran if a container's memory is
        # used up.
        await run_program(argv, deadline_s=PULL_S, cwd=self.scratch)
        if image is None:
            await self.sandbox.open()

    async def commit(self, image: str) -> None:
        """Make an image of what was set up; raises SandboxError, also if it lies on a volume."""
        points = await self.container.run_script(LIST_MOUNTS, deadline_s=CALL_S)
        volume = find_volume(self.sandbox.setup.paths(), points.decode().split())
        if volume is not None:
            raise SandboxError(f"the image {self.image} has a volume at {volume}")
        argv = commit_argv(self.config.kind, self.container.name, self.tag, image)
        await run_program(argv, deadline_s=PULL_S, cwd=self.scratch)

    async def terminate(self) -> None:
        """End its container."""
        await self.container.terminate()


class _Container(ProgramMachine):
    """A container as a machine."""

    def __init__(self, program: str, name: str) -> None:
        self._program = program
        self.name = name

    def exec_argv(self, script: str, *, stdin: bool) -> list[str]:
        """Return the command that runs a script as root; see the base class."""
        return exec_argv(self._program, self.name, script, stdin=stdin)

    async def runs(self) -> bool:
        """Return whether the container runs; see the base class."""
        state = await run_program(state_argv(self._program, self.name), deadline_s=CALL_S)
        return state.strip() == b"true"

    async def terminate(self) -> None:
        """Remove it; see the contract."""
        try:
            await run_program(remove_argv(self._program, self.name), deadline_s=CALL_S)
        except SandboxError as error:
            if NOT_FOUND not in str(error).lower():
                raise

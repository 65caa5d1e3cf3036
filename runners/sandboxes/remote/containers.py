"""The ``docker`` and ``podman`` backends: containers of the engine that the program of that name
reaches.

Both programs take the same command lines, but for what ``RUN_FLAGS``, ``REMOVE_FLAGS`` and
``qualify_image`` say.

Invariant: a container's root has only the capabilities that our set-up needs (users, owners, kill).
The agent has none, and ``no-new-privileges`` keeps it so.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from conf.sections.sandbox import ContainerSandboxConfig
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.backend import RemoteBackend
from runners.sandboxes.remote.egress import (
    EgressAccount,
    EgressPolicy,
    EgressProxy,
    find_gateway_host,
    narrow_hosts,
)
from runners.sandboxes.remote.program_machine import CALL_S, ProgramMachine, run_program
from runners.sandboxes.remote.sandbox import RemoteSandbox

RUN_LABEL = "agentrl_run"
"""Label of a container: the run's tag."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID")
PULL_S = 600.0
"""To start a container; its image may have to be pulled first."""
NOT_FOUND = "no such container"
"""In the error for a container that is gone, but for capitals; there is no exit code for it."""
RUN_FLAGS = {
    "docker": (),
    # By default podman puts the host's proxies, often with a password, into every container.
    "podman": ("--http-proxy=false",),
}
REMOVE_FLAGS = {
    "docker": (),
    # By default podman waits ten seconds for the container to end by itself.
    "podman": ("--time", "0"),
}
DOCKER_HUB = "docker.io"

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


def run_argv(config: ContainerSandboxConfig, spec: SandboxSpec, tag: str, image: str) -> list[str]:
    """Return the command that starts a container of an image, which then only waits."""
    network = config.network if spec.network == "gateway" else "none"
    return [
        *(config.kind, "run", "--detach", "--init", *RUN_FLAGS[config.kind]),
        *("--name", container_name(tag, spec.name), "--label", f"{RUN_LABEL}={tag}"),
        *("--network", network, "--user", "0", "--workdir", "/"),
        # Equal to --memory: memory and swap together, so no swap.
        *("--memory", f"{config.memory_mb}m", "--memory-swap", f"{config.memory_mb}m"),
        *("--pids-limit", str(config.processes), "--cpus", f"{config.cpus:g}"),
        *("--security-opt", "no-new-privileges", "--cap-drop", "ALL"),
        *(word for capability in CAPABILITIES for word in ("--cap-add", capability)),
        *("--entrypoint", "sleep", image, "infinity"),
    ]


def exec_argv(program: str, name: str, script: str, *, stdin: bool = False) -> list[str]:
    """Return the command that runs a script in a container as root."""
    interactive = ["--interactive"] if stdin else []
    return [program, "exec", *interactive, "--user", "0", name, "sh", "-c", script]


def build_argv(program: str, context: Path, tag: str) -> list[str]:
    """Return the command that builds an image from a directory with a Dockerfile."""
    return [program, "build", "--quiet", "--tag", tag, str(context)]


def find_image_argv(program: str, tag: str) -> list[str]:
    """Return the command that prints the id of an image, or nothing."""
    return [program, "images", "--quiet", tag]


def inspect_argv(program: str, network: str) -> list[str]:
    """Return the command that prints whether a network is internal: ``true`` or ``false``."""
    return [program, "network", "inspect", "--format", "{{.Internal}}", network]


def state_argv(program: str, name: str) -> list[str]:
    """Return the command that prints whether a container runs: ``true`` or ``false``."""
    return [program, "inspect", "--format", "{{.State.Running}}", name]


def list_argv(program: str, tag: str) -> list[str]:
    """Return the command that lists the names of a run's containers, a line each."""
    label = f"label={RUN_LABEL}={tag}"
    return [program, "ps", "--all", "--filter", label, "--format", "{{.Names}}"]


def remove_argv(program: str, name: str) -> list[str]:
    """Return the command that ends and removes a container."""
    return [program, "rm", "--force", *REMOVE_FLAGS[program], "--volumes", name]


def container_name(tag: str, name: str) -> str:
    """Return the name of a sandbox's container."""
    return f"agentrl-{tag[:12]}-{name}"


def qualify_image(image: str) -> str:
    """Return an image's name with its registry, as docker reads one without.

    podman pulls no image whose registry it must guess, unless this machine names one for that.
    """
    registry, slash, _ = image.partition("/")
    if slash and (registry == "localhost" or "." in registry or ":" in registry):
        return image
    return f"{DOCKER_HUB}/{image}" if slash else f"{DOCKER_HUB}/library/{image}"


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

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Start a container and copy the workspace there; see the contract."""
        container = _Container(self._program, container_name(self._tag, spec.name))
        if spec.network == "gateway" and self._config.egress != "open":
            account, spec = await self._control_egress(spec)
            sandbox = RemoteSandbox(
                spec,
                container,
                self._scratch,
                self._archives,
                lambda name: self._proxy.close_account(account),
                account.attempts,
            )
        else:
            sandbox = RemoteSandbox(spec, container, self._scratch, self._archives)
        try:
            image = await self._find_image(spec.image or self._config.image)
            argv = run_argv(self._config, spec, self._tag, image)
            # podman leaves a file `oom` in the directory where it ran if a container's memory is
            # used up.
            await run_program(argv, deadline_s=PULL_S, cwd=self._scratch)
            await sandbox.open()
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
        """End every container of this run, and the proxy."""
        await self._proxy.close()
        await super().close()

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


class _Container(ProgramMachine):
    """A container as a machine."""

    def __init__(self, program: str, name: str) -> None:
        self._program = program
        self._name = name

    def exec_argv(self, script: str, *, stdin: bool) -> list[str]:
        """Return the command that runs a script as root; see the base class."""
        return exec_argv(self._program, self._name, script, stdin=stdin)

    async def runs(self) -> bool:
        """Return whether the container runs; see the base class."""
        state = await run_program(state_argv(self._program, self._name), deadline_s=CALL_S)
        return state.strip() == b"true"

    async def terminate(self) -> None:
        """Remove it; see the contract."""
        try:
            await run_program(remove_argv(self._program, self._name), deadline_s=CALL_S)
        except SandboxError as error:
            if NOT_FOUND not in str(error).lower():
                raise

"""The ``apptainer`` backend: instances of Apptainer on this machine, by a user without root.

The root of an instance is this user, in a user namespace with ids of his own for the agent
(``--fakeroot``, ``/etc/subuid``). What is written goes into an overlay on this machine's disk. The
network has a loopback alone; the gateway and the proxy listen in it (``namespace_relay``).

Invariant: a sandbox has an instance and a directory, both with names that follow from the run's tag
and its own, so any later driver of the run on this machine finds and ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from conf.sections.sandbox import ApptainerSandboxConfig
from runners.sandboxes.contract import EgressAttempt, SandboxError, SandboxSpec
from runners.sandboxes.remote import apptainer_program as program
from runners.sandboxes.remote.backend import RemoteBackend
from runners.sandboxes.remote.egress import (
    EgressPolicy,
    EgressProxy,
    narrow_hosts,
    proxy_environment,
)
from runners.sandboxes.remote.id_ranges import IDS, find_missing_ranges
from runners.sandboxes.remote.namespace_relay import NamespaceRelay, listen_inside
from runners.sandboxes.remote.program_machine import CALL_S, ProgramMachine, run_program
from runners.sandboxes.remote.sandbox import RemoteSandbox
from runners.sandboxes.tree import discard

START_S = 900.0
"""To start an instance; its image may have to be pulled and converted first."""
GATEWAY_PORT, PROXY_PORT = 8080, 8081
"""On the loopback of a sandbox."""
ROOT = Path("/")
"""Directory of the program: it goes back to where it was started, which its root may not enter."""
OVERLAY, IMAGE = "overlay", "image"
"""In a sandbox's directory: what it writes; the name of its image, which removes that later."""
EGRESS = {
    "none": "no other host, by a proxy that records attempts",
    "allow": "and {hosts}, by a proxy that records attempts",
    "log": "NOT KEPT: all public hosts but the task's own, by a proxy that records attempts",
}


@dataclass(slots=True)
class _Network:
    """The connections out of an agent's sandbox, and the record of what it tried."""

    closers: list[Callable[[], object]] = field(default_factory=list)
    attempts: Callable[[], tuple[EgressAttempt, ...]] = tuple

    def close(self) -> None:
        while self.closers:
            self.closers.pop()()


class ApptainerBackend(RemoteBackend):
    """Instances of one run on this machine."""

    def __init__(self, config: ApptainerSandboxConfig, root: Path) -> None:
        """``root`` keeps the run's tag, and archives in transfer. Raises SandboxError."""
        # Without ids Apptainer goes on in a namespace of one user, in which the agent would be its
        # own supervisor's root, and does not list the instance.
        if os.geteuid() != 0 and (missing := find_missing_ranges()):
            raise SandboxError(
                f"sandbox=apptainer needs {IDS} ids of this user in {' and '.join(missing)}, for "
                "the users inside: an administrator adds them with `usermod --add-subuids "
                "100000-165535 --add-subgids 100000-165535 USER`"
            )
        super().__init__(root)
        self._config = config
        self._env = program.program_environment(os.environ)
        parent = Path(config.directory or tempfile.gettempdir()).absolute()
        self._directory = parent / f"agentrl-apptainer-{self._tag[:12]}"
        self._proxy = EgressProxy()
        self._pulls: dict[str, asyncio.Lock] = {}
        """By image: held by the first start, which may pull it."""
        self._pulled: set[str] = set()

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Start an instance and copy the workspace there; see the contract."""
        image = program.find_image(self._config, spec.image)
        instance = self._instance(spec.name)
        network = _Network()
        try:
            await self._start(instance, image)
            if spec.network == "gateway":
                spec = await self._connect(spec, instance, network)
            sandbox = RemoteSandbox(
                spec,
                instance,
                self._scratch,
                self._archives,
                network.close,
                lambda: network.attempts(),
            )
            await sandbox.open()
        except BaseException:
            network.close()
            await instance.terminate()
            raise
        return sandbox

    async def _start(self, instance: _Instance, image: str) -> None:
        """Start an instance; the first of an image that is pulled runs alone."""
        first = "://" in image and image not in self._pulled
        lock = self._pulls.setdefault(image, asyncio.Lock())
        async with lock if first else contextlib.nullcontext():
            await instance.start(self._config, image)
            self._pulled.add(image)

    async def _connect(
        self, spec: SandboxSpec, instance: _Instance, network: _Network
    ) -> SandboxSpec:
        """Have gateway and proxy listen in an instance; return its spec with their addresses."""
        url = urlsplit(spec.gateway_url or "")
        if url.scheme != "http" or url.hostname is None:
            raise SandboxError(
                f"sandbox=apptainer reaches the gateway by http://HOST:PORT, not {spec.gateway_url}"
            )
        gateway, proxy = await listen_inside(await instance.pid(), (GATEWAY_PORT, PROXY_PORT))
        relay = NamespaceRelay(url.hostname, url.port or 80)
        await relay.start(gateway)
        network.closers.append(relay.close)
        config = self._config
        allowed = {"none": (), "allow": config.egress_hosts, "log": None}[config.egress]
        hosts = narrow_hosts(allowed, spec.egress_hosts)
        account = self._proxy.open_account(EgressPolicy(hosts, spec.denied_hosts))
        network.closers.append(lambda: self._proxy.close_account(account))
        network.attempts = account.attempts
        network.closers.append((await self._proxy.listen(proxy)).close)
        found = proxy_environment(account, f"127.0.0.1:{PROXY_PORT}", "127.0.0.1")
        inside = urlunsplit(("http", f"127.0.0.1:{GATEWAY_PORT}", url.path, "", ""))
        return replace(spec, gateway_url=inside, env={**spec.env, **found})

    def guarantees(self) -> dict[str, str]:
        """Return the promises of instances; none of them is probed."""
        config, unlimited = self._config, "NOT KEPT: no limit is set"
        return {
            "isolation": "an instance of Apptainer each, in a user namespace on this machine's "
            "kernel",
            "no network but the gateway": EGRESS[config.egress].format(
                hosts=list(config.egress_hosts)
            ),
            "complete kill": "by user id, and with the instance",
            "no root rights inside": "a user of our own, with no_new_privs",
            "processes": f"{config.processes} per sandbox" if config.processes else unlimited,
            "memory": f"{config.memory_mb} MB per sandbox" if config.memory_mb else unlimited,
        }

    async def close(self) -> None:
        """End every instance of this run on this machine, and the proxy."""
        await self._proxy.close()
        await super().close()
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    async def _end(self, names: set[str] | None) -> None:
        """End this run's instances of these names, or all, and remove their directories."""
        prefix = self._instance("").name
        argv = program.list_argv(f"{prefix}*")
        listed = program.read_instances(await _run(argv, self._env))
        found = {each.removeprefix(prefix) for each in listed}
        # An instance that died is not listed any more.
        found |= {each.name for each in self._directory.glob("*")}
        if names is not None:
            found &= names
        await asyncio.gather(*(self._instance(each).terminate() for each in found))

    def _instance(self, name: str) -> _Instance:
        return _Instance(f"agentrl-{self._tag[:12]}-{name}", self._directory / name, self._env)


async def _run(
    argv: list[str], env: Mapping[str, str] | None, *, deadline_s: float = CALL_S
) -> bytes:
    """Run Apptainer and return its output; raises SandboxError."""
    return await run_program(argv, deadline_s=deadline_s, env=env, cwd=ROOT)


class _Instance(ProgramMachine):
    """An instance as a machine."""

    cwd = ROOT

    def __init__(self, name: str, directory: Path, env: dict[str, str]) -> None:
        self.name = name
        self.env = env
        self._directory = directory
        self._logs = program.log_files(name, env)

    async def start(self, config: ApptainerSandboxConfig, image: str) -> None:
        """Start it; raises SandboxError."""
        try:
            self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory.mkdir(mode=0o700)
            (self._directory / OVERLAY).mkdir()
            (self._directory / IMAGE).write_text(image)
        except OSError as error:
            raise SandboxError(f"cannot make {self._directory}: {error}") from error
        argv = program.start_argv(config, self.name, image, self._directory / OVERLAY)
        await _run(argv, self.env, deadline_s=START_S)

    async def pid(self) -> int:
        """Return its first process; raises SandboxError."""
        if (found := (await self._listed()).get(self.name)) is None:
            raise SandboxError(f"Apptainer does not list the instance {self.name} that it started")
        return found

    async def runs(self) -> bool:
        """Return whether it runs; see the base class."""
        return self.name in await self._listed()

    async def _listed(self) -> dict[str, int]:
        return program.read_instances(await _run(program.list_argv(self.name), self.env))

    def exec_argv(self, script: str, *, stdin: bool) -> list[str]:
        """Return the command that runs a script as root; see the base class."""
        return program.exec_argv(self.name, script)

    async def terminate(self) -> None:
        """End it and remove what it wrote; see the contract."""
        if await self.runs():
            try:
                await _run(program.stop_argv(self.name), self.env)
            except SandboxError:
                if await self.runs():
                    raise
        for file in self._logs:
            with contextlib.suppress(OSError):
                file.unlink()
        if not self._directory.exists():
            return
        if os.geteuid() != 0:
            # What fails here is set aside below, with a warning.
            with contextlib.suppress(SandboxError, OSError):
                image = (self._directory / IMAGE).read_text()
                argv = program.remove_argv(image, self._directory / OVERLAY)
                await _run(argv, self.env)
        try:
            await discard(self._directory, self._directory.parent.parent)
        except OSError as error:
            raise SandboxError(f"cannot remove {self._directory}: {error}") from error

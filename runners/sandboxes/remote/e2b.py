"""The ``e2b`` backend: sandboxes of E2B's cloud, or of a service that speaks its API.

Invariant: every sandbox there bears the run's tag in its metadata, so any later driver of the run
finds what is left. The API key comes from the environment, is given to the SDK, and is written
nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from e2b import AsyncSandbox, SandboxException, SandboxQuery
from e2b.connection_config import ApiParams
from e2b.sandbox.sandbox_api import SandboxNetworkOpts

from conf.sections.sandbox import E2bSandboxConfig
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.backend import RemoteBackend
from runners.sandboxes.remote.e2b_calls import E2bCalls, SandboxGoneError, lacks_route
from runners.sandboxes.remote.e2b_v1 import create_by_v1
from runners.sandboxes.remote.egress import is_below, narrow_hosts
from runners.sandboxes.remote.sandbox import RemoteSandbox

API_KEY = "E2B_API_KEY"
"""The environment variable."""
RUN_KEY = "agentrl_run"
NAME_KEY = "agentrl_name"
"""Keys of a sandbox's metadata at E2B: the run's tag, the sandbox's name."""
EVERYTHING = "0.0.0.0/0"
ROOT = "root"
ANSWER_S = 60.0
"""For a call of the control plane, with the SDK's own retries; a longer Retry-After is not waited
for.
"""
CALL_S = ANSWER_S + 5.0
"""Our deadline for the same, longer than the SDK's own."""
TRANSFER_S = 300.0
"""For a file."""
MARGIN_S = 60
"""The lifetime is renewed if a call could end this close to its end."""
T = TypeVar("T")


class E2bBackend(RemoteBackend):
    """Sandboxes of one run at E2B."""

    def __init__(self, config: E2bSandboxConfig, root: Path) -> None:
        """``root`` keeps the run's tag, and archives in transfer. Raises SandboxError."""
        key = os.environ.get(API_KEY)
        if not key:
            raise SandboxError(f"sandbox=e2b needs an API key: set {API_KEY} in the environment")
        super().__init__(root)
        self._config = config
        self._calls = E2bCalls(config.attempts, key)
        self._boots = asyncio.Semaphore(config.boots)
        self._open: set[str] = set()
        self._v1 = False
        """The server only has the first version of the API."""
        self._api: ApiParams = {
            "api_key": key,
            "retries": config.attempts - 1,
            "request_timeout": ANSWER_S,
        }
        if config.api_url is not None:
            self._api["api_url"] = config.api_url
        if config.sandbox_url is not None:
            self._api["sandbox_url"] = config.sandbox_url

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Boot a sandbox and copy the workspace there; see the contract."""
        if spec.name in self._open:
            raise SandboxError(f"there is a sandbox {spec.name} already")
        async with self._boots:
            machine = await self._boot(spec)
            sandbox = RemoteSandbox(
                spec, machine, self._scratch, self._archives, lambda: self._open.discard(spec.name)
            )
            self._open.add(spec.name)
            try:
                await sandbox.open()
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    async def _boot(self, spec: SandboxSpec) -> E2bMachine:
        """Request a sandbox until there is one, and never get a second one for it."""
        config = self._config
        template = config.template if config.image_key else spec.image or config.template
        metadata = {RUN_KEY: self._tag, NAME_KEY: spec.name, **self._image_metadata(spec)}
        network: SandboxNetworkOpts = {}
        if config.egress != "open":
            network = egress(spec, narrow_hosts(config.egress_hosts, spec.egress_hosts) or ())
        # An answer may be lost: for the same key, E2B returns the same sandbox again.
        key = str(uuid.uuid4())
        requests = itertools.count()

        async def create() -> AsyncSandbox:
            if not self._v1:
                try:
                    return await AsyncSandbox.create(
                        template,
                        config.lifetime_s,
                        metadata,
                        network=network,
                        # The default of AgentENV is to pause it, and to keep it for ever.
                        lifecycle={"on_timeout": "kill"},
                        idempotency_key=key,
                        **self._api,
                    )
                except SandboxException as error:
                    if config.api_url is None or not lacks_route(error):
                        raise
            if next(requests):
                await self._end({spec.name})  # v1 has no keys: a lost answer may have made one
            made = await create_by_v1(template, config.lifetime_s, metadata, network, self._api)
            self._v1 = True
            return made

        try:
            sandbox = await self._control("boot a sandbox", create)
        except BaseException:
            # The request may have succeeded without its answer. If ending it fails too, its
            # lifetime ends it. Shielded: a cancelled caller must not leave it running.
            with contextlib.suppress(SandboxError):
                await asyncio.shield(self._end({spec.name}))
            raise
        return E2bMachine(sandbox, self._calls, config.lifetime_s)

    def _image_metadata(self, spec: SandboxSpec) -> dict[str, str]:
        """Return the metadata that names image and size, for a service that has no templates."""
        key, image, size = self._config.image_key, spec.image, self._config.size
        if key is None:
            return {}
        prefix = key.rpartition("/")[0]
        sized = {f"{prefix}/size" if prefix else "size": size} if size else {}
        return {**({key: image} if image else {}), **sized}

    def guarantees(self) -> dict[str, str]:
        """Return the promises of E2B; none of them is probed."""
        config = self._config
        server = "E2B" if config.api_url is None else config.api_url
        network = (
            f"and {list(config.egress_hosts)}: requested from {server}, not tried; E2B checks "
            "names in HTTP on port 80 and TLS on port 443, lets its name server (8.8.8.8) through "
            "where a name is allowed, and reports no attempts"
        )
        if config.egress == "open":
            network = f"NOT KEPT, nor for graders: no rules are requested from {server}"
        return {
            "isolation": "a virtual machine each, at E2B"
            if config.api_url is None
            else f"what {server} gives each sandbox: not tried",
            "no network but the gateway": network,
            "complete kill": "by user id, and with the machine",
            "no root rights inside": "a user of our own, with no_new_privs",
            "end": f"at most {self._config.lifetime_s} s after its last use, also without us",
        }

    async def _end(self, names: set[str] | None) -> None:
        """End this run's sandboxes of these names, or all."""
        pages = AsyncSandbox.list(query=SandboxQuery(metadata={RUN_KEY: self._tag}), **self._api)
        while pages.has_next:
            page = await self._control("list sandboxes", pages.next_items)
            ids = [
                info.sandbox_id
                for info in page
                if names is None or info.metadata.get(NAME_KEY) in names
            ]
            await asyncio.gather(*(self._kill(sandbox_id) for sandbox_id in ids))

    async def _kill(self, sandbox_id: str) -> None:
        kill = partial(AsyncSandbox.kill, sandbox_id, **self._api)
        with contextlib.suppress(SandboxGoneError):
            await self._control("end a sandbox", kill)

    async def _control(self, what: str, function: Callable[[], Awaitable[T]]) -> T:
        """Call the control plane."""
        return await self._calls.call(what, function, deadline_s=CALL_S, sdk_retries=True)


class E2bMachine:
    """An E2B sandbox as a machine; its lifetime is renewed as long as it is used.

    Scripts go through its process service, files through its file service.
    """

    def __init__(self, sandbox: AsyncSandbox, calls: E2bCalls, lifetime_s: int) -> None:
        self._sandbox = sandbox
        self._calls = calls
        self._lifetime_s = lifetime_s
        self._ends_at = time.monotonic() + lifetime_s

    async def run_script(self, script: str, *, deadline_s: float) -> bytes:
        """Run a script as root; see the contract."""
        await self._renew(deadline_s)

        async def run() -> bytes:
            # Each attempt has a stream of its own; if it is cut, what the script started goes on.
            done = await self._sandbox.commands.run(script, user=ROOT, timeout=deadline_s)
            return done.stdout.encode()

        return await self._calls.call("run a script", run, deadline_s=deadline_s)

    async def write_file(self, path: str, content: bytes | Path) -> None:
        """Write a file as root; see the contract."""
        await self._renew(TRANSFER_S)

        async def write() -> None:
            if isinstance(content, bytes):
                await self._sandbox.files.write(path, content, user=ROOT)
                return
            with content.open("rb") as file:
                await self._sandbox.files.write(path, file, user=ROOT)

        await self._calls.call(f"write {path}", write, deadline_s=TRANSFER_S)

    async def read_file(self, path: str, target: Path) -> None:
        """Stream a file to the host; see the contract."""
        await self._renew(TRANSFER_S)

        async def read() -> None:
            stream = await self._sandbox.files.read(path, format="stream", user=ROOT)
            async with stream:
                with target.open("wb") as file:
                    async for chunk in stream:
                        file.write(chunk)

        await self._calls.call(f"read {path}", read, deadline_s=TRANSFER_S)

    async def terminate(self) -> None:
        """Kill it; see the contract."""
        kill = self._sandbox.kill
        with contextlib.suppress(SandboxGoneError):
            await self._calls.call("end a sandbox", kill, deadline_s=CALL_S, sdk_retries=True)

    async def _renew(self, needed_s: float) -> None:
        """Make sure that it lives for ``needed_s`` from now."""
        if time.monotonic() + needed_s + MARGIN_S < self._ends_at:
            return

        async def renew() -> None:
            await self._sandbox.set_timeout(self._lifetime_s)

        await self._calls.call("renew a sandbox", renew, deadline_s=CALL_S, sdk_retries=True)
        self._ends_at = time.monotonic() + self._lifetime_s


def egress(spec: SandboxSpec, hosts: tuple[str, ...] = ()) -> SandboxNetworkOpts:
    """Return the network rules for E2B: to the gateway's host and ``hosts``, or to nothing.

    In E2B's rules an allowed host wins over a denied one, and only an address can be denied; so a
    host that the task denies is left out here. Raises SandboxError.
    """
    if spec.network == "none":
        return {"deny_out": [EVERYTHING]}
    url = urlsplit(spec.gateway_url or "")
    host = url.hostname
    if host is None:
        raise SandboxError("network='gateway' needs gateway_url")
    port = url.port or (443 if url.scheme == "https" else 80)
    if port != (443 if url.scheme == "https" else 80) and not _is_address(host):
        raise SandboxError(
            f"E2B lets nobody reach {host} on port {port}: it checks a name in HTTP on port 80 and "
            "TLS on port 443 alone; set gateway.public_url to such a port, or to an IP address"
        )
    allowed = [each for each in hosts if not is_below(each, spec.denied_hosts)]
    return {"allow_out": [host, *allowed], "deny_out": [EVERYTHING]}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

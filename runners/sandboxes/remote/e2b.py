"""The ``e2b`` backend: sandboxes of E2B's cloud, or of a service that speaks its API.

All that this run has there bears the run's mark, so that any later driver of the run finds it. The
API key is the environment's; it is given to the SDK and written nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from e2b import AsyncSandbox, SandboxQuery
from e2b.connection_config import ApiParams
from e2b.sandbox.sandbox_api import SandboxNetworkOpts

from conf.sections.sandbox import E2bSandboxConfig
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.e2b_calls import Calls, Gone
from runners.sandboxes.remote.e2b_machine import ANSWER_S, CALL_S, E2bMachine
from runners.sandboxes.remote.sandbox import RemoteSandbox, load_run_tag, make_transfer_directory
from runners.sandboxes.tree import remove_tree

KEY = "E2B_API_KEY"
RUN = "agentrl_run"
NAME = "agentrl_name"
"""Of a sandbox's metadata at E2B."""
EVERYTHING = "0.0.0.0/0"
T = TypeVar("T")


class E2bBackend:
    """Sandboxes of one run at E2B."""

    has_images = True

    def __init__(self, config: E2bSandboxConfig, root: Path) -> None:
        """``root`` keeps the run's mark, and what is on its way."""
        key = os.environ.get(KEY)
        if not key:
            raise SandboxError(f"sandbox=e2b needs an API key: set {KEY} in the environment")
        self._config = config
        self._mark = load_run_tag(root)
        self._scratch = make_transfer_directory(root)
        self._calls = Calls(config.attempts, key)
        self._boots = asyncio.Semaphore(config.boots)
        self._open: dict[str, _E2bSandbox] = {}
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
        """Boot one and bring the workspace there; raises SandboxError."""
        if spec.name in self._open:
            raise SandboxError(f"there is a sandbox {spec.name} already")
        async with self._boots:
            machine = await self._boot(spec)
            sandbox = self._open[spec.name] = _E2bSandbox(self, spec, machine, self._scratch)
            try:
                await sandbox.open()
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    async def _boot(self, spec: SandboxSpec) -> E2bMachine:
        """Ask for a sandbox until there is one, and then for no second one."""
        config = self._config
        call = partial(
            AsyncSandbox.create,
            metadata={RUN: self._mark, NAME: spec.name, **self._routing(spec)},
            template=config.template if config.image_key else spec.image or config.template,
            timeout=config.lifetime_s,
            network=egress(spec),
            # An answer may be lost: with the same key, E2B gives the same sandbox again.
            idempotency_key=str(uuid.uuid4()),
            **self._api,
        )
        try:
            sandbox = await self._control("boot a sandbox", call)
        except BaseException:
            with contextlib.suppress(SandboxError):  # its lifetime ends it
                await asyncio.shield(self._end({spec.name}))
            raise
        return E2bMachine(sandbox, self._calls, config.lifetime_s)

    def _routing(self, spec: SandboxSpec) -> dict[str, str]:
        """Return the metadata by which a service of images, not templates, picks one and its
        size.
        """
        key, image, size = self._config.image_key, spec.image, self._config.size
        if key is None:
            return {}
        prefix = key.rpartition("/")[0]
        sized = {f"{prefix}/size" if prefix else "size": size} if size else {}
        return {**({key: image} if image else {}), **sized}

    def guarantees(self) -> dict[str, str]:
        """Return what E2B promises; nothing of it is probed."""
        return {
            "isolation": "a virtual machine each, at E2B",
            "no network but the gateway": "asked of E2B, not tried",
            "complete kill": "by user id, and with the machine",
            "no root rights inside": "a user of our own, with no_new_privs",
            "end": f"at most {self._config.lifetime_s} s after its last use, also without us",
        }

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """End the sandboxes of a dead driver of this run."""
        await self._end(set(left))

    async def close(self) -> None:
        """End every sandbox of this run."""
        await self._end(None)
        await asyncio.to_thread(remove_tree, self._scratch)

    async def _end(self, names: set[str] | None) -> None:
        """End this run's sandboxes of these names, or all."""
        pages = AsyncSandbox.list(query=SandboxQuery(metadata={RUN: self._mark}), **self._api)
        while pages.has_next:
            page = await self._control("list sandboxes", pages.next_items)
            left = [
                info.sandbox_id
                for info in page
                if names is None or info.metadata.get(NAME) in names
            ]
            await asyncio.gather(*(self._kill(sandbox_id) for sandbox_id in left))

    async def _kill(self, sandbox_id: str) -> None:
        call = partial(AsyncSandbox.kill, sandbox_id, **self._api)
        try:
            await self._control("end a sandbox", call)
        except Gone:
            return

    async def _control(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._calls.make(what, call, deadline_s=CALL_S, retried=True)

    def forget(self, name: str) -> None:
        """Take a closed sandbox off the list."""
        self._open.pop(name, None)


class _E2bSandbox(RemoteSandbox):
    """One that its backend knows of until it is closed."""

    def __init__(
        self, backend: E2bBackend, spec: SandboxSpec, machine: E2bMachine, scratch: Path
    ) -> None:
        super().__init__(spec, machine, scratch)
        self._backend = backend

    async def close(self) -> None:
        """End the machine."""
        await super().close()
        self._backend.forget(self.spec.name)


def egress(spec: SandboxSpec) -> SandboxNetworkOpts:
    """Return what E2B is to let out: what goes to the gateway, or nothing."""
    host = urlsplit(spec.gateway_url or "").hostname
    if spec.network == "none":
        return {"deny_out": [EVERYTHING]}
    if host is None:
        raise SandboxError("network='gateway' needs gateway_url")
    return {"allow_out": [host], "deny_out": [EVERYTHING]}

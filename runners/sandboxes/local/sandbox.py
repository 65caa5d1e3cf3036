"""A sandbox of this machine: one workspace, and namespaces of their own for each command."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from runners.sandboxes.contract import CommandResult, SandboxError, SandboxSpec
from runners.sandboxes.local.boot import CLOSED, Launcher, end
from runners.sandboxes.local.command import Command, execute
from runners.sandboxes.local.isolation import Place
from runners.sandboxes.local.rooms import SlotFactory
from runners.sandboxes.local.sandbox_processes import track_sandbox
from runners.sandboxes.tree import copy_tree

GATEWAY_URL = "http://127.0.0.1:8080"
CONTROL_S = 10.0
"""To reach the gateway's control socket."""


class LocalSandbox:
    """One workspace on this machine."""

    def __init__(
        self,
        rooms: SlotFactory,
        spec: SandboxSpec,
        place: Place,
        booted: Launcher | None,
        forget: Callable[[str], None],
    ) -> None:
        """``booted``: the place is made, and these namespaces wait for the first command."""
        self.spec = spec
        self._rooms = rooms
        self._isolation = rooms.isolation
        self._place = place
        self._booted = booted
        self._made_ahead = booted is not None
        self._forget = forget
        self.workspace = place.workspace
        self.workdir = self._isolation.workdir(place)
        self.gateway_url: str | None = None
        self._running: set[asyncio.Task[CommandResult]] = set()
        self._closed = False

    async def open(self) -> None:
        """Make the workspace; raises SandboxError."""
        spec, namespaced = self.spec, self._isolation.namespaced
        if spec.network == "gateway":
            self.gateway_url = GATEWAY_URL if namespaced else spec.gateway_url
            if self.gateway_url is None or (namespaced and spec.gateway_control is None):
                raise SandboxError("network='gateway' needs gateway_control and gateway_url")
        try:
            await asyncio.to_thread(self._make)
        except OSError as error:
            raise SandboxError(f"cannot make the workspace: {error}") from error

    def _make(self) -> None:
        if not self._made_ahead:
            self._rooms.make(self._place)
        assert self.spec.source is not None
        copy_tree(self.spec.source, self.workspace, exists=True)
        if self.spec.change is not None:
            self.spec.change(self.workspace)

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Run a command in the workspace, in namespaces of its own; see the contract."""
        if self._closed:
            raise SandboxError(f"sandbox {self.spec.name} is closed")
        environment = {
            **self._isolation.environment(self._place),
            **self.spec.env,
            **(env or {}),
        }
        arguments = self._isolation.arguments(self._place, argv)
        command = Command(arguments, environment, stdin, deadline_s, output_limit)
        work = asyncio.ensure_future(self._run(command))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        return await work

    async def _run(self, command: Command) -> CommandResult:
        booted, self._booted = self._booted, None
        listens = self.spec.network == "gateway" and self._isolation.namespaced
        if booted is not None and not booted.alive():
            booted.discard()
            booted = None
        if booted is None:
            booted = await self._rooms.boot(self._place, listens=listens)
        with track_sandbox(booted.popen.pid, self.spec.name):
            try:
                if booted.listener != CLOSED:
                    await self._open_door(booted.listener)
            except BaseException:
                await end(booted)
                raise
            return await execute(booted, command)

    @asynccontextmanager
    async def on_host(self, *, leave_out: Collection[str] = ()) -> AsyncIterator[Path]:
        """Yield the workspace itself."""
        yield self.workspace

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace."""
        self._closed = True
        for work in self._running:
            work.cancel()
        if self._running:
            await asyncio.wait(self._running)
        try:
            await asyncio.to_thread(self._remove)
        except OSError as error:
            raise SandboxError(f"cannot remove {self._place.home}: {error}") from error
        finally:
            self._forget(self.spec.name)

    def _remove(self) -> None:
        booted, self._booted = self._booted, None
        if booted is not None:
            booted.discard()
        self._rooms.remove(self._place)

    async def _open_door(self, listener: int) -> None:
        """Have the gateway serve the socket that listens in here; raises SandboxError."""
        path, loop = self.spec.gateway_control, asyncio.get_running_loop()
        hello = json.dumps({"session_key": self.spec.session_key}).encode() + b"\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            try:
                async with asyncio.timeout(CONTROL_S):
                    await loop.sock_connect(connection, str(path))
                    socket.send_fds(connection, [hello], [listener])
                    answer = await loop.sock_recv(connection, 1)
            except (OSError, TimeoutError) as error:
                raise SandboxError(f"the gateway does not answer on {path}: {error}") from error
        if answer != b"1":
            raise SandboxError("the gateway refused the sandbox's session")

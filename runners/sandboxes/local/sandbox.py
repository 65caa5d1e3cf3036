"""A sandbox of this machine: one workspace, and for each command namespaces of its own.

Between two commands nothing of the agent runs; what stays is files.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import stat
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from runners.sandboxes.contract import (
    CHECK_FILE_LIMIT,
    CheckCommand,
    CheckOutput,
    CommandResult,
    EgressAttempt,
    OversizedError,
    SandboxError,
    SandboxSpec,
    describe_os_error,
)
from runners.sandboxes.local.command import LocalCommand, run_command
from runners.sandboxes.local.disk_watch import wait_overfull
from runners.sandboxes.local.isolation import SandboxHome
from runners.sandboxes.local.launch import CLOSED, Launcher, end
from runners.sandboxes.local.warm_pool import SlotFactory
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.system.processes import RUNNING

GATEWAY_URL = "http://127.0.0.1:8080"
"""The gateway inside: every sandbox has a loopback, and so a port 8080, of its own."""
CONTROL_S = 10.0
"""To reach the gateway's control socket."""


class LocalSandbox:
    """One workspace on this machine."""

    def __init__(
        self,
        factory: SlotFactory,
        spec: SandboxSpec,
        home: SandboxHome,
        launcher: Launcher | None,
        on_close: Callable[[str], None],
    ) -> None:
        """With a ``launcher`` from a warm slot the home exists, and it runs the first command.

        ``on_close`` is called with the sandbox's name when it is closed.
        """
        self.spec = spec
        self._factory = factory
        self._isolation = factory.isolation
        self._home = home
        self._launcher = launcher
        self._warm = launcher is not None
        self._on_close = on_close
        self.workspace = home.workspace
        self.workdir = self._isolation.workdir(home)
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
            place = self._home.directory.parent
            text = describe_os_error("cannot make the workspace", place, error)
            raise SandboxError(text) from error

    def _make(self) -> None:
        if not self._warm:
            self._factory.make_home(self._home)
        assert self.spec.source is not None
        copy_tree(self.spec.source, self.workspace, exists=True)
        for inside, source in self.spec.trees.items():
            target = self._home.trees[inside]
            target.parent.mkdir(exist_ok=True)
            copy_tree(source, target)
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
            **self._isolation.environment(self._home),
            **self.spec.env,
            **(env or {}),
        }
        arguments = self._isolation.arguments(self._home, argv)
        command = LocalCommand(arguments, environment, stdin, deadline_s, output_limit)
        # A task of its own, so that ``close`` can cancel it without cancelling our caller.
        work = asyncio.ensure_future(self._run(command))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        return await work

    async def _run(self, command: LocalCommand) -> CommandResult:
        launcher, self._launcher = self._launcher, None
        listens = self.spec.network == "gateway" and self._isolation.namespaced
        if launcher is not None and not launcher.alive():
            launcher.discard()
            launcher = None
        if launcher is None:
            launcher = await self._factory.boot(self._home, listens=listens)
        RUNNING[launcher.popen.pid] = self.spec.known_as
        try:
            try:
                if launcher.listener != CLOSED:
                    await self._connect_gateway(launcher)
            except BaseException:
                await end(launcher)
                raise
            return await self._run_watched(launcher, command)
        finally:
            del RUNNING[launcher.popen.pid]

    async def _run_watched(self, launcher: Launcher, command: LocalCommand) -> CommandResult:
        """Run a command unless the sandbox fills the disk; raises OversizedError if it does."""
        source, most = self.spec.source, self.spec.workspace_bytes
        assert source is not None
        copies = {self.workspace: source}
        copies |= {self._home.trees[inside]: tree for inside, tree in self.spec.trees.items()}
        full = asyncio.ensure_future(wait_overfull(copies, launcher.popen.pid, most))
        work = asyncio.ensure_future(run_command(launcher, command))
        try:
            await asyncio.wait([full, work], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise OversizedError(full.result())
            return work.result()
        finally:
            full.cancel()
            work.cancel()
            await asyncio.wait([work])

    async def run_check(self, check: CheckCommand) -> CheckOutput:
        """Run a check in namespaces of its own, which have its files; see the contract.

        There is one user in a sandbox here, so the files are read-only mounts, and the output is a
        directory that no command before could see.
        """
        if self._closed:
            raise SandboxError(f"sandbox {self.spec.name} is closed")
        output = self._home.directory / f"check-{secrets.token_hex(4)}"
        try:
            await asyncio.to_thread(self._prepare_check, check, output)
        except OSError as error:
            text = describe_os_error("cannot prepare a check", self._home.directory, error)
            raise SandboxError(text) from error
        home = replace(
            self._home,
            mounts={**self._home.mounts, **check.files},
            trees={**self._home.trees, check.output: output},
        )
        environment = {**self._isolation.environment(home), **self.spec.env, **check.env}
        command = LocalCommand(check.argv, environment, b"", check.deadline_s, check.output_limit)
        work = asyncio.ensure_future(self._boot_check(home, command))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        result = await work
        return CheckOutput(result, await asyncio.to_thread(read_files, output, check.reads))

    async def _boot_check(self, home: SandboxHome, command: LocalCommand) -> CommandResult:
        launcher = await self._factory.boot(home, listens=False)
        RUNNING[launcher.popen.pid] = self.spec.known_as
        try:
            return await self._run_watched(launcher, command)
        finally:
            del RUNNING[launcher.popen.pid]

    def _prepare_check(self, check: CheckCommand, output: Path) -> None:
        output.mkdir()
        for inside in (check.output, *check.files):
            for place, host in self._home.writable:
                if inside.startswith(f"{place}/"):
                    clear_mount_point(host, inside.removeprefix(f"{place}/"))

    @asynccontextmanager
    async def on_host(
        self, *, leave_out: Collection[str] = (), only: Collection[str] = ()
    ) -> AsyncIterator[Path]:
        """Yield the workspace itself."""
        yield self.workspace

    def egress_attempts(self) -> tuple[EgressAttempt, ...]:
        """Return nothing: no network leads out, so nobody sees what a command tries."""
        return ()

    async def close(self) -> None:
        """Kill whatever is left and remove the workspace; raises SandboxError."""
        self._closed = True
        for work in self._running:
            work.cancel()
        if self._running:
            await asyncio.wait(self._running)
        try:
            launcher, self._launcher = self._launcher, None
            if launcher is not None:
                await asyncio.to_thread(launcher.discard)
            await self._factory.remove_home(self._home)
        except OSError as error:
            raise SandboxError(f"cannot remove {self._home.directory}: {error}") from error
        finally:
            self._on_close(self.spec.name)

    async def _connect_gateway(self, launcher: Launcher) -> None:
        """Have the gateway serve the sandbox's listening socket; raises SandboxError.

        The socket itself is handed over (SCM_RIGHTS). It belongs to the sandbox's network
        namespace, so this is the only way in or out of it, and it leads to one session: the gateway
        accepts the socket only with that session's key, and serves on it only the agent program
        (``AgentProcess``).
        """
        path, loop = self.spec.gateway_control, asyncio.get_running_loop()
        facts = {"session_key": self.spec.session_key, "launcher": launcher.pid}
        hello = json.dumps(facts).encode() + b"\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            try:
                async with asyncio.timeout(CONTROL_S):
                    await loop.sock_connect(connection, str(path))
                    socket.send_fds(connection, [hello], [launcher.listener])
                    answer = await loop.sock_recv(connection, 1)
            except (OSError, TimeoutError) as error:
                raise SandboxError(f"the gateway does not answer on {path}: {error}") from error
        if answer != b"1":
            raise SandboxError("the gateway refused the sandbox's session")


def clear_mount_point(root: Path, relative: str) -> None:
    """Make the directory at a path below ``root`` empty and real, whatever an agent put there.

    On the host nothing is mounted there, so the agent could replace it, or a directory above it, by
    a link that leads elsewhere. Raises OSError.
    """
    at = root
    for part in relative.split("/"):
        at = at / part
        if at.is_symlink() or not at.is_dir():
            remove_tree(at)
            at.mkdir()


def read_files(directory: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the beginnings of those of some files that are regular; follows no link."""
    found = {}
    for name in names:
        with suppress(OSError):
            # O_NONBLOCK: opening a FIFO would wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(directory / name, flags), "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    found[name] = file.read(CHECK_FILE_LIMIT)
    return found

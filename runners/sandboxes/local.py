"""The ``local`` backend: sandboxes of this machine's kernel, without a container engine.

Each command runs in namespaces of its own over the sandbox's workspace; between two commands
nothing runs. The strongest isolation that works here is found by trying it (``probe``), and
``guarantees`` says what was seen to hold, not what should.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from conf import schema
from runners.marks import SANDBOX
from runners.owner import fresh_name
from runners.sandboxes import cgroup, memory
from runners.sandboxes.bubblewrap import Bubblewrap
from runners.sandboxes.contract import CommandResult, SandboxError, SandboxSpec
from runners.sandboxes.interior import Interior, Isolation, Place, set_limits
from runners.sandboxes.orphans import end_orphans
from runners.sandboxes.plain import Plain
from runners.sandboxes.probe import PROBE, Findings, look, say
from runners.sandboxes.process import Command, execute
from runners.sandboxes.seccomp import DenyList
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.sandboxes.unshare import Unshare

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
GATEWAY_URL = "http://127.0.0.1:8080"
CONTROL_S = 10.0
"""To reach the gateway's control socket."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


class LocalBackend:
    """Sandboxes below one directory; choosing the isolation takes about 0.2 s and blocks."""

    def __init__(self, config: schema.LocalSandbox, root: Path) -> None:
        """Begin with nothing: what killed drivers left on this machine is ended and removed."""
        self._config = config
        self._root = root.absolute()
        self._open: dict[str, LocalSandbox] = {}
        self._small: dict[Path, bool] = {}
        self._name = fresh_name()
        self._numbers = itertools.count()
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
        self._groups = cgroup.ProcessGroups.find(self._name, config.processes)
        self.deny_list = DenyList.write(self._interior.root / "seccomp.bpf")
        try:
            self.isolation, self._findings = self._choose()
        except BaseException:
            self._remove()
            raise

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
        sandbox = LocalSandbox(self, spec, self.isolation)
        self._open[spec.name] = sandbox
        try:
            await sandbox.open()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def guarantees(self) -> dict[str, str]:
        """Return what holds here, as the probe saw it."""
        said = say(self.isolation.name, self._findings, self._config, groups=bool(self._groups))
        small = f"in memory up to {memory.LARGEST_SOURCE >> 20} MB, else "
        return {**said, "workspaces": f"{small if self._memory else ''}below {self._root}"}

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """Do nothing: what killed drivers left here was ended when this backend was made."""

    async def close(self) -> None:
        """Remove every sandbox that is left, and the shared files."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        if self._groups is not None:
            self._groups.close()
        for directory in (self._root, self._memory):
            if directory is not None:
                remove_tree(directory)

    # --- for its sandboxes ---------------------------------------------------------------------

    @property
    def config(self) -> schema.LocalSandbox:
        """The limits."""
        return self._config

    @property
    def groups(self) -> cgroup.ProcessGroups | None:
        """Process groups, where the driver may make them."""
        return self._groups

    def home(self, spec: SandboxSpec) -> Path:
        """Return the private directory of a sandbox: in memory if its source is small."""
        if self._memory is not None and spec.source and self._small.get(spec.source):
            return self._memory / spec.name
        return self._root / "open" / spec.name

    def next_mark(self) -> str:
        """Return a mark for the processes of a new sandbox."""
        return f"{self._name}/{next(self._numbers)}"

    def forget(self, name: str) -> None:
        """Take a closed sandbox off the list."""
        self._open.pop(name, None)

    # --- choosing ------------------------------------------------------------------------------

    def _choose(self) -> tuple[Isolation, Findings]:
        wanted = self._config.isolation
        failures = []
        for name, make in ISOLATIONS.items():
            if wanted not in ("auto", name):
                continue
            isolation = make(self._interior)
            try:
                findings = self._probe(isolation)
            except SandboxError as error:
                failures.append(f"{name}: {error}")
                continue
            if name == "none":
                _warn(failures)
            return isolation, findings
        mend = MEND.get(wanted, "see the reasons")
        raise SandboxError(
            f"sandbox.isolation={wanted} does not work here: {'; '.join(failures)}; {mend}"
        )

    def _probe(self, isolation: Isolation) -> Findings:
        if (
            isolation.namespaced
            and shutil.which({"bubblewrap": "bwrap", "unshare": "unshare"}[isolation.name]) is None
        ):
            raise SandboxError("not installed")

        async def trial() -> Findings:
            source = self._root / "probe"
            source.mkdir(exist_ok=True)
            spec = SandboxSpec("probe", source, "none", mounts={"/opt/probe/probe.py": PROBE})
            sandbox = LocalSandbox(self, spec, isolation)
            await sandbox.open()
            try:
                return await look(sandbox, self._root, isolation, self._config.processes)
            finally:
                await sandbox.close()

        return _run_aside(trial)


class LocalSandbox:
    """One workspace on this machine."""

    def __init__(self, backend: LocalBackend, spec: SandboxSpec, isolation: Isolation) -> None:
        self.spec = spec
        self._backend = backend
        self._isolation = isolation
        self._place = Place(backend.home(spec), spec.mounts)
        self.workspace = self._place.workspace
        self.workdir = isolation.workdir(self._place)
        self.gateway_url: str | None = None
        if spec.network == "gateway":
            self.gateway_url = GATEWAY_URL if isolation.namespaced else spec.gateway_url
            if self.gateway_url is None or (isolation.namespaced and spec.gateway_control is None):
                raise SandboxError("network='gateway' needs gateway_control and gateway_url")
        self._running: set[asyncio.Task[CommandResult]] = set()
        self._mark = backend.next_mark()
        self._numbers = itertools.count()
        self._closed = False

    async def open(self) -> None:
        """Make the workspace; raises SandboxError."""
        try:
            await asyncio.to_thread(self._make)
        except OSError as error:
            raise SandboxError(f"cannot make the workspace: {error}") from error

    def _make(self) -> None:
        self._place.home.mkdir(parents=True)
        assert self.spec.source is not None
        copy_tree(self.spec.source, self.workspace)
        if self.spec.change is not None:
            self.spec.change(self.workspace)
        self._isolation.prepare(self._place)
        if self._backend.groups is not None:
            self._backend.groups.add(self.spec.name)

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
        environment[SANDBOX] = f"{self._mark}/{next(self._numbers)}"
        namespaced = self._isolation.namespaced
        with self._backend.deny_list.opened() as handle:
            deny = handle if namespaced else None
            control = await self._connect() if self._shares_gateway() else None
            command = Command(
                argv=lambda status, handle: self._command(argv, status, handle, deny),
                env=environment,
                cwd=None if self._isolation.namespaced else self.workspace,
                stdin=stdin,
                deadline_s=deadline_s,
                output_limit=output_limit,
                namespaced=self._isolation.namespaced,
                control=control,
                admit=self._admit,
                inherit=() if deny is None else (deny,),
            )
            work = asyncio.ensure_future(execute(command))
            self._running.add(work)
            work.add_done_callback(self._running.discard)
            return await work

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
        if self._backend.groups is not None:
            self._backend.groups.remove(self.spec.name)
        try:
            await asyncio.to_thread(remove_tree, self._place.home)
        except OSError as error:
            raise SandboxError(f"cannot remove {self._place.home}: {error}") from error
        finally:
            self._backend.forget(self.spec.name)

    def _command(self, argv: list[str], status: int, control: int, deny: int | None) -> list[str]:
        launch = [str(status), str(control)]
        return self._isolation.command(self._place, launch, argv, deny)

    def _admit(self, pid: int) -> None:
        set_limits(pid, self._backend.config, namespaced=self._isolation.namespaced)
        if self._backend.groups is not None:
            self._backend.groups.admit(self.spec.name, pid)

    def _shares_gateway(self) -> bool:
        return self.spec.network == "gateway" and self._isolation.namespaced

    async def _connect(self) -> socket.socket:
        """Open the connection over which the gateway takes this sandbox's listening socket."""
        path = self.spec.gateway_control
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        hello = json.dumps({"session_key": self.spec.session_key}).encode() + b"\n"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONTROL_S):
                await loop.sock_connect(connection, str(path))
                await loop.sock_sendall(connection, hello)
        except (OSError, TimeoutError) as error:
            connection.close()
            raise SandboxError(f"the gateway does not answer on {path}: {error}") from error
        except BaseException:
            connection.close()
            raise
        connection.setblocking(True)
        return connection


def _run_aside(work: Callable[[], Coroutine[None, None, Findings]]) -> Findings:
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

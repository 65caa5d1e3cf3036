"""A sandbox on a machine elsewhere: the workspace goes there and comes back as a tar file.

Invariant: the agent never gets the machine's root. Commands run as a user made for them, who owns
the workspace and a home, can read the mounts, and cannot gain other rights.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

from runners.sandboxes.contract import (
    BASE_ENVIRONMENT,
    CHECK_FILE_LIMIT,
    CheckCommand,
    CheckOutput,
    CommandResult,
    EgressAttempt,
    SandboxError,
    SandboxSpec,
    describe_os_error,
)
from runners.sandboxes.remote import detached
from runners.sandboxes.remote.archive import UNPACKED_LIMIT, ArchiveWriter, oversized_error, unpack
from runners.sandboxes.remote.archive_cache import ArchiveCache
from runners.sandboxes.remote.long_script import run_long_script
from runners.sandboxes.remote.machine import AGENT, STATE, Machine
from runners.sandboxes.remote.setup import HOME, SETUP_S, Setup
from runners.sandboxes.tree import discard

CHECKS = f"{STATE}/checks"
CHECK_HOMES = "/var/lib/agentrl-homes"
FETCH_S = 120.0
"""To pack one there."""

ENVIRONMENT = {**BASE_ENVIRONMENT, "HOME": HOME, "USER": AGENT, "LOGNAME": AGENT}
"""Besides the image's own environment: PATH is not here, because the image's finds its tools."""

OVERSIZED = "agentrl-oversized"
"""Printed by ``FETCH`` if it cut the workspace off at the limit."""

FETCH = """\
set -e
tar -C {workdir} {leave_out} -cf - {only} |
    {{ head -c {limit}; head -c 1 > {target}.more; }} | gzip -1 > {target}
[ ! -s {target}.more ] || echo {oversized}
"""


ROOT_HOME = "/root"
CHECK_SETUP = """\
umask 022
checks={checks} state={state} output={output}
mkdir -p "$checks"
{kill_all}
set -e
for parent in {parents}; do
    [ ! -L "$parent" ] || rm -f "$parent"
done
rm -rf -- {replaced} "$output"
mkdir -p "$output" {home}
for parent in {parents}; do
    chown 0:0 "$parent"
    chmod 755 "$parent"
done
tar -xpzf "$state.tar.gz" -C /
rm -f "$state.tar.gz"
user={user}
if [ -n "$user" ]; then
    uid=$(id -u "$user" 2>/dev/null || echo "$user")
    chown "$uid" "$output" {home}
fi
"""
CHECK_READ = """\
echo agentrl-files
for name in {names}; do
    file={output}/$name
    if [ -f "$file" ] && [ ! -L "$file" ]; then
        echo "$name"
        head -c {limit} "$file" | base64 | tr -d '\\n'
        echo
    fi
done
"""


class RemoteSandbox:
    """A workspace on a machine; one command runs at a time."""

    def __init__(
        self,
        spec: SandboxSpec,
        machine: Machine,
        scratch: Path,
        archives: ArchiveCache,
        on_close: Callable[[], object] = lambda: None,
        egress: Callable[[], tuple[EgressAttempt, ...]] = tuple,
    ) -> None:
        """``scratch`` is a directory of the host for archives in transfer.

        ``archives`` holds those that sandboxes with the same files start from.

        ``on_close`` is called when its machine has ended; ``egress`` returns what it
        tried to reach.
        """
        self.spec = spec
        self.setup = Setup(spec, scratch, archives)
        self.workdir = self.setup.workdir
        self.gateway_url = spec.gateway_url if spec.network == "gateway" else None
        self._machine = machine
        self._scratch = scratch
        self._on_close = on_close
        self.egress_attempts = egress
        self._lock = asyncio.Lock()
        """Held while a command runs: its end kills everything of the agent's user."""
        self._running: set[asyncio.Task[CommandResult]] = set()
        self._closed = False

    async def open(self) -> None:
        """Copy the workspace, the mounts and the supervisor to the machine; raises SandboxError."""
        await self.setup.fill(self._machine)

    async def run(
        self,
        argv: list[str],
        *,
        deadline_s: float,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 65536,
    ) -> CommandResult:
        """Run a command in the workspace; a second one waits for the first. See the contract."""
        mounts = self.setup.mounts
        command = detached.DetachedCommand(
            argv=[mounts[word][0] if word in mounts else word for word in argv],
            env={**ENVIRONMENT, **self.spec.env, **(env or {})},
            workdir=self.workdir,
            stdin=stdin,
            deadline_s=deadline_s,
            output_limit=output_limit,
        )
        async with self._lock:
            if self._closed:
                raise SandboxError(f"sandbox {self.spec.name} is closed")
            # A task of its own, so that ``close`` can cancel it without cancelling our caller.
            work = asyncio.ensure_future(detached.run_detached(self._machine, command))
            self._running.add(work)
            work.add_done_callback(self._running.discard)
            return await work

    async def run_check(self, check: CheckCommand) -> CheckOutput:
        """Run a check as root or another user that is not the agent's; see the contract."""
        state = f"{CHECKS}/{secrets.token_hex(8)}"
        home = ROOT_HOME
        if not detached.is_root(check.user) or is_below(ROOT_HOME, self.workdir):
            home = f"{CHECK_HOMES}/{secrets.token_hex(8)}"  # the agent cannot have written there
        user = "root" if check.user is None else check.user
        command = detached.DetachedCommand(
            argv=check.argv,
            env={
                **BASE_ENVIRONMENT,
                **{"HOME": home, "USER": user, "LOGNAME": user},
                **self.spec.env,
                **check.env,
            },
            workdir=self.workdir,
            stdin=b"",
            deadline_s=check.deadline_s,
            output_limit=check.output_limit,
            supervisor=f"{state}.supervise",
        )
        async with self._lock:
            if self._closed:
                raise SandboxError(f"sandbox {self.spec.name} is closed")
            await self._set_up_check(check, state, home)
            work = asyncio.ensure_future(detached.run_detached(self._machine, command))
            self._running.add(work)
            work.add_done_callback(self._running.discard)
            result = await work
            return CheckOutput(result, await self._read_output(check))

    async def _set_up_check(self, check: CheckCommand, state: str, home: str) -> None:
        """Put a check's files in place; raises SandboxError."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
            archive = Path(directory) / "check.tar.gz"
            try:
                await asyncio.to_thread(_pack_check, archive, check, state)
            except OSError as error:
                text = describe_os_error("cannot pack a check", self._scratch, error)
                raise SandboxError(text) from error
            await self._machine.write_file(f"{state}.tar.gz", archive)
        parents = [str(each) for each in PurePosixPath(check.output).parents][:-1]
        script = CHECK_SETUP.format(
            checks=CHECKS,
            state=state,
            output=shlex.quote(check.output),
            kill_all=detached.KILL_ALL,
            parents=shlex.join(reversed(parents)),
            replaced=shlex.join(check.files),
            home=shlex.quote(home),
            user="" if detached.is_root(check.user) else shlex.quote(check.user or ""),
        )
        await run_long_script(self._machine, script, deadline_s=SETUP_S)

    async def _read_output(self, check: CheckCommand) -> dict[str, bytes]:
        """Return the files that a check has written; raises SandboxError."""
        script = CHECK_READ.format(
            names=shlex.join(check.reads), output=shlex.quote(check.output), limit=CHECK_FILE_LIMIT
        )
        printed = await run_long_script(self._machine, script, deadline_s=FETCH_S)
        lines = printed.partition(b"agentrl-files\n")[2].decode("ascii", "replace").split("\n")
        pairs = zip(lines[:-1:2], lines[1::2], strict=False)
        try:
            return {name: base64.b64decode(text, validate=True) for name, text in pairs}
        except ValueError as error:
            raise SandboxError("a check's files cannot be read") from error

    @asynccontextmanager
    async def on_host(
        self, *, leave_out: Collection[str] = (), only: Collection[str] = ()
    ) -> AsyncIterator[Path]:
        """Yield a copy of the workspace on the host; see the contract."""
        there = f"{STATE}/{secrets.token_hex(8)}.tar.gz"
        script = FETCH.format(
            workdir=shlex.quote(self.workdir),
            leave_out=" ".join(shlex.quote(f"--exclude=./{_literal(name)}") for name in leave_out),
            only=" ".join(shlex.quote(f"./{name}") for name in only) or ".",
            limit=UNPACKED_LIMIT,
            target=there,
            oversized=OVERSIZED,
        )
        home = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            async with self._lock:
                printed = await run_long_script(self._machine, script, deadline_s=FETCH_S)
            if OVERSIZED.encode() in printed.split():
                raise oversized_error()
            await self._machine.read_file(there, home / "workspace.tar.gz")
            workspace = home / "workspace"
            workspace.mkdir()
            await asyncio.to_thread(unpack, home / "workspace.tar.gz", workspace)
            yield workspace
        finally:
            await discard(home, self._scratch.parent)

    async def close(self) -> None:
        """End the machine and everything that runs there; raises SandboxError."""
        self._closed = True
        for work in self._running:
            work.cancel()
        await self._machine.terminate()
        if self._running:
            await asyncio.wait(self._running)
        self._on_close()


def _literal(name: str) -> str:
    """Return a path as a pattern of ``tar`` that matches it alone."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", name)


def is_below(path: str, directory: str) -> bool:
    """Return whether a path inside is a directory or below it."""
    return PurePosixPath(path).is_relative_to(directory)


def _pack_check(archive: Path, check: CheckCommand, state: str) -> None:
    supervisor = archive.with_name("supervise")
    supervisor.write_text(detached.write_check_supervisor(check.user))
    with ArchiveWriter(archive) as pack:
        pack.add_readonly(f"{state}.supervise", supervisor)
        for inside, host in check.files.items():
            pack.add_readonly(inside, host)

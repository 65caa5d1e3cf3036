"""A sandbox on a machine elsewhere: the workspace goes there and comes back as a tar file.

The machine's root is ours alone. Commands run as a user made for them, who owns the workspace and
his home, can read the mounts, and has no way to other rights.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from runners.sandboxes.contract import CommandResult, SandboxError, SandboxSpec
from runners.sandboxes.program import find_source
from runners.sandboxes.remote import detached
from runners.sandboxes.remote.archive import UNPACKED_LIMIT, ArchiveWriter, oversized_error, unpack
from runners.sandboxes.remote.machine import AGENT, AGENT_ID, STATE, Machine
from runners.sandboxes.tree import copy_tree, remove_tree

WORKDIR = "/workspace"
HOME = f"/home/{AGENT}"
ARCHIVE = f"{STATE}/source.tar.gz"
SETUP_S = 120.0
"""To unpack a workspace."""
FETCH_S = 120.0
"""To pack one."""

ENVIRONMENT = {
    "HOME": HOME,
    "USER": AGENT,
    "LOGNAME": AGENT,
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@sandbox",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@sandbox",
}
"""Beside what the image gives: its PATH finds its tools."""

# A second call waits for the first: two must not unpack over each other.
SETUP = """\
umask 022
state={state} workdir={workdir}
if ! mkdir "$state/setting_up" 2>/dev/null; then
    looks=0
    until [ -f "$state/set_up" ] || [ "$looks" -ge 1000 ]; do
        sleep 0.1
        looks=$((looks + 1))
    done
    [ -f "$state/set_up" ]
    exit
fi
set -e
chmod 700 "$state"
for tool in base64 setpriv setsid tar; do
    command -v "$tool" >/dev/null || {{ echo "the image has no $tool" >&2; exit 1; }}
done
grep -q '^{agent}:' /etc/passwd ||
    echo '{agent}:x:{id}:{id}::{home}:/bin/sh' >> /etc/passwd
grep -q '^{agent}:' /etc/group || echo '{agent}:x:{id}:' >> /etc/group
# The workspace has another owner than who looks at it, which git refuses by itself.
printf '[safe]\\n\\tdirectory = *\\n' >> /etc/gitconfig
if ! command -v python >/dev/null && command -v python3 >/dev/null; then
    ln -s "$(command -v python3)" /usr/local/bin/python
fi
# The image's own repository gives way to ours, the future in its history too; what git does not
# track, built extensions and the like, stays.
if [ -n "{replaced}" ] && [ -e "$workdir/.git" ]; then
    command -v git >/dev/null || {{ echo "the image has no git" >&2; exit 1; }}
    (cd "$workdir" && git ls-files -z > "$state/tracked" && xargs -0 rm -rf -- < "$state/tracked")
    rm -rf "$workdir/.git" "$state/tracked"
fi
mkdir -p "$workdir" {home}
tar -xpzf {archive} -C /
rm -f {archive}
chown {owners} {id}:{id} "$workdir"
chown {id}:{id} {home}
: > "$state/set_up"
"""

OVERSIZED = "agentrl-oversized"
"""``FETCH`` says so of a workspace that was cut."""

# Beside the archive first, so that a second call does not write into what the first has written.
FETCH = """\
set -e
tar -C {workdir} {leave_out} -cf - . |
    {{ head -c {limit}; head -c 1 > {target}.more.$$; }} | gzip -1 > {target}.$$
[ ! -s {target}.more.$$ ] || echo {oversized}
mv {target}.$$ {target}
"""


class RemoteSandbox:
    """A workspace on a machine."""

    def __init__(self, spec: SandboxSpec, machine: Machine, scratch: Path) -> None:
        """``scratch`` is a directory of the host for what is on its way."""
        self.spec = spec
        self.workdir = spec.workdir or WORKDIR
        self.gateway_url = spec.gateway_url if spec.network == "gateway" else None
        self._machine = machine
        self._scratch = scratch
        self._mounts = dict(_as_source(inside, host) for inside, host in spec.mounts.items())
        self._renamed = {
            inside: _as_source(inside, host)[0] for inside, host in spec.mounts.items()
        }
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[CommandResult]] = set()
        self._closed = False

    async def open(self) -> None:
        """Bring the workspace, the mounts and the supervisor there; raises SandboxError."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
            archive = Path(directory) / "source.tar.gz"
            try:
                await asyncio.to_thread(self._pack, archive)
            except OSError as error:
                raise SandboxError(f"cannot pack {self.spec.source}: {error}") from error
            await self._machine.put(ARCHIVE, archive)
        script = SETUP.format(
            state=STATE,
            workdir=shlex.quote(self.workdir),
            agent=AGENT,
            id=AGENT_ID,
            home=HOME,
            archive=ARCHIVE,
            owners="-R" if self.spec.workdir is not None else "",
            replaced="yes" if self.spec.source is not None else "",
        )
        await self._machine.sh(script, deadline_s=SETUP_S)

    def _pack(self, archive: Path) -> None:
        with ArchiveWriter(archive) as pack:
            supervise = archive.with_name("supervise")
            supervise.write_text(detached.SUPERVISE)
            pack.add_readonly(detached.SUPERVISE_AT, supervise)
            for inside, host in self._mounts.items():
                pack.add_readonly(inside, host)
            source = self.spec.source
            if source is not None and self.spec.change is not None:
                copy = archive.with_name("workspace")
                copy_tree(source, copy)
                self.spec.change(copy)
                source = copy
            if source is not None:
                pack.add_writable(self.workdir, source)

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
        command = detached.Command(
            argv=[self._renamed.get(word, word) for word in argv],
            env={**ENVIRONMENT, **self.spec.env, **(env or {})},
            workdir=self.workdir,
            stdin=stdin,
            deadline_s=deadline_s,
            output_limit=output_limit,
        )
        async with self._turn:
            if self._closed:
                raise SandboxError(f"sandbox {self.spec.name} is closed")
            work = asyncio.ensure_future(detached.execute(self._machine, command))
            self._running.add(work)
            work.add_done_callback(self._running.discard)
            return await work

    @asynccontextmanager
    async def on_host(self, *, leave_out: Collection[str] = ()) -> AsyncIterator[Path]:
        """Yield a copy of the workspace on the host; see the contract."""
        there = f"{STATE}/{secrets.token_hex(8)}.tar.gz"
        script = FETCH.format(
            workdir=shlex.quote(self.workdir),
            leave_out=" ".join(shlex.quote(f"--exclude=./{name}") for name in leave_out),
            limit=UNPACKED_LIMIT,
            target=there,
            oversized=OVERSIZED,
        )
        home = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            async with self._turn:
                said = await self._machine.sh(script, deadline_s=FETCH_S)
            if OVERSIZED.encode() in said.split():
                raise oversized_error()
            await self._machine.get(there, home / "workspace.tar.gz")
            workspace = home / "workspace"
            workspace.mkdir()
            await asyncio.to_thread(unpack, home / "workspace.tar.gz", workspace)
            yield workspace
        finally:
            await asyncio.to_thread(remove_tree, home)

    async def close(self) -> None:
        """End the machine."""
        self._closed = True
        for work in self._running:
            work.cancel()
        await self._machine.end()
        if self._running:
            await asyncio.wait(self._running)


def load_run_tag(root: Path) -> str:
    """Return what marks the machines of the run that keeps this directory, for all its drivers."""
    file = root / "mark"
    root.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_text(secrets.token_hex(16))
    return file.read_text()


def make_transfer_directory(root: Path) -> Path:
    """Return an empty directory of the host for what is on its way."""
    scratch = root / "transit"
    remove_tree(scratch)
    scratch.mkdir(parents=True)
    return scratch


def _as_source(inside: str, host: Path) -> tuple[str, Path]:
    """Return where a mount goes and what it is: compiled programs fit one version of Python."""
    source = find_source(host)
    return (inside, host) if source is None else (inside.removesuffix(".pyc") + ".py", source)

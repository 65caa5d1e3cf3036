"""Fill a machine with what a sandbox starts from: its workspace, its mounts and the supervisor.

Invariant: two sandboxes with the same ``name`` are filled alike.
"""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runners.sandboxes.contract import SandboxError, SandboxSpec, describe_os_error, find_source
from runners.sandboxes.remote import detached
from runners.sandboxes.remote.archive import ArchiveWriter
from runners.sandboxes.remote.archive_cache import ArchiveCache, fingerprint
from runners.sandboxes.remote.long_script import run_long_script
from runners.sandboxes.remote.machine import AGENT, AGENT_ID, STATE, Machine
from runners.sandboxes.tree import copy_tree

WORKDIR = "/workspace"
HOME = f"/home/{AGENT}"
ARCHIVE = f"{STATE}/source.tar.gz"
SETUP_S = 120.0
"""To unpack a workspace there."""

SCRIPT = """\
umask 022
state={state} workdir={workdir}
set -e
chmod 700 "$state"
for tool in setpriv tar; do
    command -v "$tool" >/dev/null || {{ echo "the image has no $tool" >&2; exit 1; }}
done
grep -q '^{agent}:' /etc/passwd ||
    echo '{agent}:x:{id}:{id}::{home}:/bin/sh' >> /etc/passwd
grep -q '^{agent}:' /etc/group || echo '{agent}:x:{id}:' >> /etc/group
# root and the agent both use the repository, and git refuses one that another user owns.
printf '[safe]\\n\\tdirectory = *\\n' >> /etc/gitconfig
if ! command -v python >/dev/null && command -v python3 >/dev/null; then
    ln -s "$(command -v python3)" /usr/local/bin/python
fi
# The image's repository is replaced by ours: its history may contain the fix of the task. Files
# that git does not track, such as built extensions, stay.
if [ -n "{replaced}" ] && [ -e "$workdir/.git" ]; then
    command -v git >/dev/null || {{ echo "the image has no git" >&2; exit 1; }}
    (cd "$workdir" && git ls-files -z > "$state/tracked" && xargs -0 rm -rf -- < "$state/tracked")
    rm -rf "$workdir/.git" "$state/tracked"
fi
rm -rf -- {removed}
mkdir -p "$workdir" {home} /tmp
chmod 1777 /tmp
tar -xpzf {archive} -C /
rm -f {archive}
chown {owners} {id}:{id} "$workdir"
chown {id}:{id} {home}
"""


class Setup:
    """Files and settings with which one sandbox starts."""

    def __init__(self, spec: SandboxSpec, scratch: Path, archives: ArchiveCache) -> None:
        """``scratch`` is a directory of the host for archives in transfer.

        ``archives`` holds those that sandboxes with the same files start from.
        """
        self.workdir = spec.workdir or WORKDIR
        self.mounts = {mount: _with_source(mount, host) for mount, host in spec.mounts.items()}
        """By a mount's path in the spec: its path inside, and its path on the host."""
        self._spec = spec
        self._scratch = scratch
        self._archives = archives
        self._fingerprint: str | None = None

    async def name(self) -> str | None:
        """Return a name that sandboxes which are filled alike have in common.

        None: this one is like no other. Raises SandboxError.
        """
        if self._spec.change is not None:  # a grader's
            return None
        try:
            contents = await self._find_fingerprint()
        except OSError as error:
            raise self._packing_error(error) from error
        return repr((contents, self.workdir, self._spec.source is None, self._spec.removed))

    def paths(self) -> list[str]:
        """Return what is written: paths inside, with all below them."""
        places = (path for path, _ in self._places())
        return [STATE, self.workdir, HOME, detached.SUPERVISE_AT, *places, *self._spec.removed]

    async def fill(self, machine: Machine) -> None:
        """Copy the workspace, the mounts and the supervisor to the machine; raises SandboxError."""
        try:
            async with self._archive() as archive:
                await machine.write_file(ARCHIVE, archive)
        except OSError as error:
            raise self._packing_error(error) from error
        script = SCRIPT.format(
            state=STATE,
            workdir=shlex.quote(self.workdir),
            agent=AGENT,
            id=AGENT_ID,
            home=HOME,
            archive=ARCHIVE,
            owners="-R" if self._spec.workdir is not None else "",
            replaced="yes" if self._spec.source is not None else "",
            removed=" ".join(shlex.quote(path) for path in self._spec.removed) or '""',
        )
        await run_long_script(machine, script, deadline_s=SETUP_S)

    @asynccontextmanager
    async def _archive(self) -> AsyncIterator[Path]:
        """Yield an archive of all that is copied there; raises OSError."""
        if self._spec.change is not None:  # a grader's: its files are like no other's
            with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
                archive = Path(directory) / "source.tar.gz"
                await asyncio.to_thread(self._pack, archive)
                yield archive
            return
        name = await self._find_fingerprint()
        async with self._archives.use(name, self._pack) as archive:
            yield archive

    async def _find_fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = await asyncio.to_thread(fingerprint, self._places())
        return self._fingerprint

    def _places(self) -> list[tuple[str, Path]]:
        """Return what is copied there: its path inside, and on the host."""
        places = [*self.mounts.values(), *self._spec.trees.items()]
        if self._spec.source is not None:
            places.append((self.workdir, self._spec.source))
        return places

    def _packing_error(self, error: OSError) -> SandboxError:
        what = f"cannot pack {self._spec.source}"
        return SandboxError(describe_os_error(what, self._scratch, error))

    def _pack(self, archive: Path) -> None:
        with ArchiveWriter(archive) as pack:
            supervise = archive.with_name("supervise")
            supervise.write_text(detached.SUPERVISE)
            pack.add_readonly(detached.SUPERVISE_AT, supervise)
            for inside, host in self.mounts.values():
                pack.add_readonly(inside, host)
            for inside, host in self._spec.trees.items():
                pack.add_writable(inside, host)
            source = self._spec.source
            if source is not None and self._spec.change is not None:
                copy = archive.with_name("workspace")
                copy_tree(source, copy)
                self._spec.change(copy)
                source = copy
            if source is not None:
                pack.add_writable(self.workdir, source)


def _with_source(inside: str, host: Path) -> tuple[str, Path]:
    """Return a mount's path inside and on the host; of a compiled program, those of its source.

    A compiled program fits one version of Python, and the image may have another.
    """
    source = find_source(host)
    return (inside, host) if source is None else (inside.removesuffix(".pyc") + ".py", source)

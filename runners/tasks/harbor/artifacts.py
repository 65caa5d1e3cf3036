"""Carry artifacts from an agent's sandbox to that of a separate verifier.

Symbolic links are left out: in the verifier's sandbox
one could lead to the tests, whose answers would then be read as the agent's.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from pathlib import Path

from runners.sandboxes.contract import OversizedError, Sandbox, SandboxError
from runners.sandboxes.remote import unpack
from runners.tasks.harbor.inspection import inspect
from runners.tasks.harbor.task_config import Artifact

ALWAYS = Artifact(source="/logs/artifacts")
"""Carried from every task."""
LIMIT = 64 << 20
"""Bytes of all artifacts, packed."""
FETCH_S = 120.0

PACK = """\
set -- {excluded}
for path in {paths}; do
    [ -e "/$path" ] && set -- "$@" "$path"
done
tar -C / -czf - -T /dev/null "$@" 2>/dev/null | head -c {limit}
"""


async def fetch_artifacts(sandbox: Sandbox, artifacts: tuple[Artifact, ...], scratch: Path) -> Path:
    """Return a directory with the artifacts at their paths in the verifier's sandbox.

    A missing artifact is left out. Raises SandboxError, and OversizedError beyond ``LIMIT``.
    """
    wanted = (*artifacts, ALWAYS)
    excluded = [f"--exclude={pattern}" for each in wanted for pattern in each.exclude]
    script = PACK.format(
        excluded=shlex.join(excluded),
        paths=shlex.join(each.source.lstrip("/") for each in wanted),
        limit=LIMIT + 1,
    )
    done = await inspect(sandbox, script, deadline_s=FETCH_S, output_limit=LIMIT + 1)
    if len(done.stdout) > LIMIT:
        raise OversizedError(f"the artifacts are larger than {LIMIT >> 20} MB")
    return await asyncio.to_thread(_place, done.stdout, wanted, scratch)


def _place(content: bytes, artifacts: tuple[Artifact, ...], scratch: Path) -> Path:
    packed, found, root = scratch / "a.tar.gz", scratch / "found", scratch / "root"
    packed.write_bytes(content)
    for directory in (found, root):
        directory.mkdir()
    unpack(packed, found)
    try:
        _remove_links(found)
        for artifact in artifacts:
            source = found / artifact.source.strip("/")
            target = root / artifact.source.strip("/")
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    except (OSError, shutil.Error, RecursionError) as error:
        raise SandboxError(f"the artifacts cannot be put in place: {error}") from error
    return root


def _remove_links(root: Path) -> None:
    for folder, directories, files in os.walk(root):
        for name in (*directories, *files):
            if (Path(folder) / name).is_symlink():
                (Path(folder) / name).unlink()

"""Directory trees on their way to a machine and back, as compressed tar files on the host.

Invariant: what comes back is an agent's. Nothing of it is written outside the target, no link is
followed, and only directories, files and symbolic links are made.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from runners.sandboxes.contract import OversizedError, SandboxError
from runners.sandboxes.remote.machine import AGENT_ID

UNPACKED_LIMIT = 1 << 30
"""Bytes of a workspace, as a tar file, that are taken back."""


class ArchiveWriter:
    """A tar file to be unpacked at ``/``; owners are numbers, no user of the host is named."""

    def __init__(self, archive: Path) -> None:
        self._tar = tarfile.open(archive, "w:gz", compresslevel=1)  # noqa: SIM115 (close)

    def __enter__(self) -> ArchiveWriter:
        """Write into it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Complete it."""
        self._tar.close()

    def add_writable(self, inside: str, source: Path) -> None:
        """Add a tree that will be the agent's."""
        self._tar.add(source, inside.lstrip("/"), filter=_owned(AGENT_ID, 0o600))

    def add_readonly(self, inside: str, source: Path) -> None:
        """Add a file or a tree that the agent can only read."""
        self._tar.add(source, inside.lstrip("/"), filter=_owned(0, 0o444, mask=0o555))


def _owned(
    owner: int, mode: int, *, mask: int = 0o777
) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    def change(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            return None  # a device, a socket, a FIFO
        member.uid = member.gid = owner
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        member.mode = (member.mode & mask) | mode | (0o555 if member.isdir() else 0)
        return member

    return change


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tree into an existing empty directory; raises SandboxError, also if it is cut."""
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if tar.offset >= UNPACKED_LIMIT:
                    raise oversized_error()
                _make(tar, member, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SandboxError(f"the workspace cannot be unpacked: {error}") from error


def oversized_error() -> OversizedError:
    """Return what is raised of a workspace beyond the limit."""
    return OversizedError(f"the workspace has more than {UNPACKED_LIMIT >> 20} MB")


def _make(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    parts = PurePosixPath(member.name).parts
    if not parts:
        return  # the tree itself
    path = _place(target, parts)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        original = _place(target, PurePosixPath(member.linkname).parts)
        shutil.copy2(original, path, follow_symlinks=False)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, (member.mode & 0o777) | 0o600), "wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)


def _place(target: Path, parts: tuple[str, ...]) -> Path:
    """Return where a member goes; its parents are real directories, made if they are missing."""
    if ".." in parts or parts[0] == "/":
        raise SandboxError(f"the workspace has a path that leads out of it: {'/'.join(parts)}")
    at = target
    for part in parts[:-1]:
        at /= part
        if not at.is_symlink():
            at.mkdir(exist_ok=True)
        else:
            raise SandboxError(f"the workspace has a path through a link: {'/'.join(parts)}")
    return at / parts[-1]

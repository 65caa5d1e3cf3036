"""Pack directory trees for a machine, and unpack those that come back, as compressed tar files.

Invariant: an archive that comes back is an agent's work and may be hostile. Nothing in it is
written outside the target, no link is followed, and only directories, files and symbolic links are
made.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from runners.sandboxes.contract import OversizedError, SandboxError, describe_os_error
from runners.sandboxes.remote.machine import AGENT_ID

UNPACKED_LIMIT = 1 << 30
"""Largest workspace that is copied back, in bytes of the uncompressed tar file."""


MEMBERS = 200_000
"""Most files and directories that are copied back."""


class ArchiveWriter:
    """Writes a tar file that is to be unpacked at ``/``; raises OSError.

    Owners are numbers alone: names of the host's users would mean other users there, or leak.
    """

    def __init__(self, archive: Path) -> None:
        self._tar = tarfile.open(archive, "w:gz", compresslevel=1)  # noqa: SIM115 (close)

    def __enter__(self) -> ArchiveWriter:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Complete it."""
        self._tar.close()

    def add_writable(self, inside: str, source: Path) -> None:
        """Add a tree that the agent will own."""
        self._tar.add(source, inside.lstrip("/"), filter=_set_owner(AGENT_ID, 0o600))

    def add_readonly(self, inside: str, source: Path) -> None:
        """Add a file or a tree that the agent can only read."""
        self._tar.add(source, inside.lstrip("/"), filter=_set_owner(0, 0o444, mask=0o555))


def _set_owner(
    owner: int, mode: int, *, mask: int = 0o777
) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    """Return a filter for tarfile that sets owner and mode, and drops all but files and links."""

    def change(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            return None  # a device, a socket, a FIFO
        member.uid = member.gid = owner
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)  # a fraction would cost an extra header per member
        member.mode = (member.mode & mask) | mode | (0o555 if member.isdir() else 0)
        return member

    return change


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tree into an existing empty directory.

    Raises OversizedError beyond ``UNPACKED_LIMIT``, and SandboxError if the archive is broken, cut
    off, or leads out of the target.
    """
    try:
        # A stream: members are made as they are read, and the size is checked on the way, so a
        # small archive that unpacks to terabytes stops at the limit.
        with tarfile.open(archive, "r|gz") as tar:
            for number, member in enumerate(tar):
                if tar.offset >= UNPACKED_LIMIT or number >= MEMBERS:
                    raise oversized_error()
                tar.members = []  # type: ignore[attr-defined]  # else all stay in memory
                _make_member(tar, member, target)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # an agent's directories
            raise OversizedError(f"the workspace has {error.strerror}") from error
        text = describe_os_error("the workspace cannot be unpacked", target, error)
        raise SandboxError(text) from error
    except (tarfile.TarError, EOFError) as error:
        raise SandboxError(f"the workspace cannot be unpacked: {error}") from error


def oversized_error() -> OversizedError:
    """Return the error for a workspace beyond the limit."""
    return OversizedError(
        f"the workspace has more than {UNPACKED_LIMIT >> 20} MB or {MEMBERS} files"
    )


def _make_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    parts = PurePosixPath(member.name).parts
    if not parts:
        return  # the tree itself
    path = _member_path(target, parts)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        original = _member_path(target, PurePosixPath(member.linkname).parts)
        shutil.copy2(original, path, follow_symlinks=False)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        # O_EXCL and O_NOFOLLOW: an earlier member of this name may be a link to anywhere.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, (member.mode & 0o777) | 0o600), "wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)


def _member_path(target: Path, parts: tuple[str, ...]) -> Path:
    """Return the path of a member; its parents are real directories, made if they are missing.

    Raises SandboxError if the path leads out of the target.
    """
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

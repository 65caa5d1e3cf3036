"""Copy directory trees that an agent will write.

Invariant: nothing is shared with the source, and no symbolic link is followed. Hard links would be
cheaper, but the agent could write through them to the source; ``copy_file_range`` shares blocks
where the file system can (btrfs, xfs), and copies a block when it is first written.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

CHUNK = 1 << 30
"""Bytes copied at once."""


def copy_tree(source: Path, target: Path, *, exists: bool = False) -> None:
    """Copy a directory, without devices, sockets and FIFOs; raises OSError.

    ``target`` must not exist; with ``exists`` it is an empty directory.
    """
    _copy_directory(os.fspath(source), os.fspath(target), exists=exists)


def _copy_directory(source: str, target: str, *, exists: bool = False) -> None:
    if not exists:
        os.mkdir(target)  # noqa: PTH102 (Path objects double the cost of a small tree)
    with os.scandir(source) as entries:
        for entry in entries:
            copy = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), copy)  # noqa: PTH115, PTH211
            elif entry.is_dir():
                _copy_directory(entry.path, copy)
            elif entry.is_file():
                _copy_file(entry.path, copy)
    # Last, and always writable for us: an agent's read-only directory must be filled and removed.
    os.chmod(target, stat.S_IMODE(os.stat(source).st_mode) | stat.S_IRWXU)  # noqa: PTH101, PTH116


def _copy_file(source: str, target: str) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = os.fstat(reader)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        writer = os.open(target, flags, stat.S_IMODE(info.st_mode) | stat.S_IWUSR)
        try:
            left = info.st_size
            while left > 0:
                left -= (copied := _copy_range(reader, writer, min(left, CHUNK)))
                if copied == 0:  # the source was cut meanwhile
                    break
            os.fchmod(writer, stat.S_IMODE(info.st_mode) | stat.S_IWUSR)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_range(reader: int, writer: int, count: int) -> int:
    if count <= 1 << 16:  # one read and one write are cheaper than asking for shared blocks
        return os.write(writer, os.read(reader, count))
    try:
        return os.copy_file_range(reader, writer, count)
    except OSError:  # across file systems before Linux 5.19, or a file system without it
        return os.write(writer, os.read(reader, min(count, 1 << 20)))

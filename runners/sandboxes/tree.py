"""Copy directory trees that an agent will write, and remove them.

Invariant: a copy shares nothing with its source, and no symbolic link is followed. Hard links would
be cheaper, but the agent could write through them to the source; ``copy_file_range`` shares blocks
where the file system can (btrfs, xfs), and copies a block when it is first written.

What cannot be removed is set aside: it must not hurt a later run. A large tree is removed by a
process of its own, so that it takes no time of the driver's interpreter, and a caller on an event
loop holds no thread meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import subprocess
import sys
from pathlib import Path

from runners.sandboxes import removal

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


NAMES = 5
"""Of a directory that is to be empty, before giving up."""
OWN_PROCESS = 20_000
"""Entries after which a process of its own goes on: half a second of the driver's interpreter."""


def remove_tree(path: Path) -> None:
    """Remove a file or a tree; blocks. A path that is gone is no error.

    Raises OSError for the first entry that stays; everything else is removed.
    """
    if not removal.Removal(path, OWN_PROCESS).run():
        done = subprocess.run(_command(path), stderr=subprocess.PIPE, check=False)
        _raise_failure(path, done.returncode, done.stderr)


def discard_tree(path: Path, aside: Path) -> None:
    """Remove a tree, or move what cannot be removed into ``aside``, with a warning; blocks.

    ``aside`` is a directory of the same file system. Raises OSError if it cannot be moved either.
    """
    try:
        remove_tree(path)
    except OSError as error:
        _set_aside(path, aside, error)


def clear_directory(path: Path) -> Path:
    """Return an empty directory for us alone at ``path``, without what was there; blocks.

    If that can be neither removed nor moved (a mount, another user's), the directory gets another
    name: ``path`` with a number, the same at each start. Raises OSError.
    """
    place = path
    for number in range(2, NAMES + 2):
        marker = place.with_name(f".{place.name}.stuck")
        try:
            discard_tree(place, place.parent)
            marker.unlink(missing_ok=True)
            break
        except OSError as error:
            if number > NAMES:
                raise
            _warn_once(place, marker, error)
        place = path.with_name(f"{path.name}-{number}")
    place.mkdir(mode=0o700, parents=True)
    return place


def _warn_once(path: Path, marker: Path, error: OSError) -> None:
    """Print that a directory stays where it is, unless its marker says that it was printed."""
    with contextlib.suppress(FileExistsError):
        with contextlib.suppress(PermissionError):
            marker.touch(exist_ok=False)
        print(
            f"WARNING: cannot remove or move {path} ({error.strerror}); a directory beside it is "
            "used instead. Remove it, as root: umount what is mounted there, rm -rf.",
            file=sys.stderr,
            flush=True,
        )


async def discard(path: Path, aside: Path) -> None:
    """Do the same as ``discard_tree`` without blocking."""
    try:
        if not await asyncio.to_thread(removal.Removal(path, OWN_PROCESS).run):
            process = await asyncio.create_subprocess_exec(
                *_command(path), stderr=asyncio.subprocess.PIPE
            )
            _, printed = await process.communicate()
            _raise_failure(path, process.returncode or 0, printed)
    except OSError as error:
        await asyncio.to_thread(_set_aside, path, aside, error)


def _command(path: Path) -> list[str]:
    return [sys.executable, "-I", "-S", removal.__file__, os.fspath(path)]


def _raise_failure(path: Path, code: int, printed: bytes) -> None:
    """Raise OSError if the removing process ended with an exit code; it printed errno and text."""
    if code:
        number, _, text = printed.decode(errors="replace").strip().partition(" ")
        known = int(number) if number.isdigit() else errno.EIO
        raise OSError(known, text or f"the removal ended with exit code {code}", str(path))


def _set_aside(path: Path, aside: Path, reason: OSError) -> None:
    left = aside / f".agentrl-left-{secrets.token_hex(6)}"
    try:
        path.rename(left)
    except FileNotFoundError:  # somebody else removed it meanwhile
        return
    print(
        f"WARNING: cannot remove what a sandbox left ({reason.strerror}: {reason.filename}). It is "
        f"set aside as {left}, where it disturbs nothing. To delete it, as root: umount what is "
        "mounted below it, chattr -R -ia, rm -rf.",
        file=sys.stderr,
        flush=True,
    )

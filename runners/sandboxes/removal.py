"""Remove trees that an agent has written, whatever it made of them.

Invariant: no symbolic link and no mount is entered, no path is longer than one name, and neither
memory nor descriptors grow with the tree. Each directory is moved up beside the tree's top before
it is emptied. So depth does not matter, and a mount point, which the kernel refuses to move, is
detached and never emptied: behind it may be the host's own files. Mode, owner and flags are changed
of what is in the tree only: neither of the directory that holds it nor of what is mounted on it.

The module imports the standard library only, because a large tree is removed by a process of its
own that runs this file (``tree.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path

PASSES = 100
"""Looks at one directory that still is not empty: something else may be writing there."""
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
IMMUTABLE, APPEND_ONLY = 0x10, 0x20
"""Flags of ``chattr``, which forbid even root to remove, rename or change a file."""
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
MOUNTS = 64
"""Mounts on top of each other on one directory."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS = struct.Struct("i4x")


class Removal:
    """Removal of one tree; used once."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        """``limit``: entries after which it stops."""
        self._parent, self._name = os.fspath(path.parent), path.name
        self._left = limit
        self._prefix = f".{secrets.token_hex(8)}."
        """Of the names of directories that were moved to the top, followed by a number."""
        self._moved = self._emptied = 0
        self._failure: OSError | None = None

    def run(self) -> bool:
        """Remove; return whether it is done. Raises OSError for the first entry that stays."""
        try:
            parent = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return self._remove_top(parent)
        finally:
            os.close(parent)

    def _remove_top(self, parent: int) -> bool:
        try:
            if not stat.S_ISDIR(os.lstat(self._name, dir_fd=parent).st_mode):
                _retry(
                    lambda: os.unlink(self._name, dir_fd=parent), parent, self._name, foreign=True
                )
                return True
            top = self._open_top(parent)
        except FileNotFoundError:
            return True
        try:
            done = self._empty_top(top)
        finally:
            os.close(top)
        if done:
            _retry(lambda: os.rmdir(self._name, dir_fd=parent), parent, self._name, foreign=True)
        return done

    def _open_top(self, parent: int) -> int:
        """Open the tree's top, after detaching what is mounted on it; raises OSError."""
        for _ in range(MOUNTS):
            top = _open_directory(parent, self._name)
            if _mount_id(top) == _mount_id(parent):
                return top
            os.close(top)
            if not _detach(parent, self._name):
                break
        raise OSError(errno.EBUSY, "a mount that cannot be detached", self._name)

    def _empty_top(self, top: int) -> bool:
        """Empty the tree's top, through which every directory of it passes; raises OSError."""
        done = self._empty(top, top)
        while done and self._emptied < self._moved:
            name = f"{self._prefix}{self._emptied}"
            self._emptied += 1
            done = self._remove_moved(top, name)
        self._raise()
        return done

    def _remove_moved(self, top: int, name: str) -> bool:
        """Empty and remove a directory that was moved to the top; return whether to go on."""
        try:
            directory = _open_directory(top, name)
        except FileNotFoundError:
            return True
        except OSError as error:
            return self._fail(error)
        try:
            if not self._empty(directory, top):
                return False
        finally:
            os.close(directory)
        try:
            _retry(lambda: os.rmdir(name, dir_fd=top), top, name)
        except OSError as error:
            self._fail(error)
        return True

    def _empty(self, directory: int, top: int) -> bool:
        """Unlink a directory's files and move its directories to the top; return whether to go on.

        A scan may miss entries while others are removed, so it is repeated until it finds none.
        """
        for _ in range(PASSES):
            found = failed = 0
            with os.scandir(directory) as entries:
                for entry in entries:
                    if directory == top and entry.name.startswith(self._prefix):
                        continue
                    if self._left is not None and self._left <= 0:
                        return False
                    found += 1
                    failed += not self._take(directory, top, entry)
                    self._left = None if self._left is None else self._left - 1
            if found == failed:
                break
        return True

    def _take(self, directory: int, top: int, entry: os.DirEntry[str]) -> bool:
        """Unlink an entry or move it to the top; return whether it is gone from its directory."""
        try:
            if not entry.is_dir(follow_symlinks=False):
                return self._unlink(directory, entry.name)
            target = f"{self._prefix}{self._moved}"
            _retry(
                lambda: os.rename(entry.name, target, src_dir_fd=directory, dst_dir_fd=top),
                directory,
                entry.name,
            )
            self._moved += 1
        except FileNotFoundError:
            return True
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _unlink(self, directory: int, name: str) -> bool:
        try:
            _retry(lambda: os.unlink(name, dir_fd=directory), directory, name)
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: OSError) -> bool:
        self._failure = self._failure or error
        return True

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


def _retry(
    action: Callable[[], object], directory: int, name: str, *, foreign: bool = False
) -> None:
    """Call ``action`` on an entry; if it is refused, remove what forbids it and call it again.

    ``foreign``: the directory is not the tree's (``/dev/shm``, say), and stays as it is. Raises
    OSError; an entry that is gone is no error.
    """
    for last in (False, True):
        try:
            action()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if last or error.errno not in (errno.EPERM, errno.EACCES, errno.EBUSY):
                raise
        detached = 0
        while detached < MOUNTS and _detach(directory, name):
            detached += 1
        if not foreign:
            _permit_open(directory)
        _permit(directory, name)


def _permit(directory: int, name: str) -> None:
    """Give us every right on an entry that we can give, unless a mount hides it."""
    # O_PATH opens what cannot be read, and no FIFO or device acts on it; /proc then leads to that
    # very entry, so a link put in its place meanwhile is not followed.
    with contextlib.suppress(OSError):
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if _mount_id(handle) == _mount_id(directory):
                _permit_open(handle)
        finally:
            os.close(handle)


def _permit_open(handle: int) -> None:
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    entry = f"/proc/self/fd/{handle}"
    if kind in (stat.S_IFDIR, stat.S_IFREG):
        _clear_flags(entry)  # first: the flags forbid a change of the mode too
    # Only of directories: a file is removed whatever its mode is, and may have other hard links.
    if kind == stat.S_IFDIR:
        with contextlib.suppress(OSError):
            os.chown(entry, os.geteuid(), -1)
        with contextlib.suppress(OSError):
            mine = os.fstat(handle).st_uid == os.geteuid()
            os.chmod(entry, 0o700 if mine else 0o777)  # noqa: PTH101
        _clear_flags(entry)  # again: it may be readable only now


def _clear_flags(entry: str) -> None:
    """Clear the flags by which ``chattr`` protects a file."""
    with contextlib.suppress(OSError):
        handle = os.open(entry, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            (flags,) = _FLAGS.unpack(fcntl.ioctl(handle, FS_IOC_GETFLAGS, bytes(_FLAGS.size)))
            if flags & (IMMUTABLE | APPEND_ONLY):
                free = _FLAGS.pack(flags & ~(IMMUTABLE | APPEND_ONLY))
                fcntl.ioctl(handle, FS_IOC_SETFLAGS, free)
        finally:
            os.close(handle)


def _open_directory(directory: int, name: str) -> int:
    """Open a directory, without following a link, giving us the right to if it is refused."""
    try:
        handle = os.open(name, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        _permit(directory, name)
        handle = os.open(name, _DIRECTORY, dir_fd=directory)
    return handle


def _detach(directory: int, name: str) -> bool:
    """Detach a mount from an entry; return whether there was one that could be detached."""
    path = f"/proc/self/fd/{directory}/{name}".encode("utf-8", "surrogateescape")
    detached: int = _libc.umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW)
    return detached == 0


def _mount_id(handle: int) -> str:
    """Return the number of the mount that an open directory belongs to."""
    text = Path(f"/proc/self/fdinfo/{handle}").read_text()
    return text.partition("mnt_id:")[2].split("\n")[0].strip()


_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Remove the tree that the command line names; print errno and text if some of it stays."""
    os.nice(10)
    try:
        Removal(Path(sys.argv[1])).run()
    except OSError as error:
        print(error.errno or errno.EIO, error.strerror or error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

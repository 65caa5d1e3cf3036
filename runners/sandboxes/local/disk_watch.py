"""End a sandbox that fills the disk, or the memory, which the others need too.

A file system shared by sandboxes has no quota for each, and tmpfs is the host's memory. So while a
command runs, the space that is left is watched, and when it runs out the sandbox measures itself.
One that holds much is ended, before others fail for want of space: the others did not
fill the disk. A workspace in memory also has a largest size: its memory counts as the driver's,
which the kernel may kill for it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from runners.sandboxes.local.memory_room import TMPFS, file_system, memory_room

LOOK_S = 0.25
"""Between two looks at the space that is left. Memory is filled at some GB per second."""
AGAIN_S = 5.0
"""Between two measurements of a sandbox that was not to blame."""
LEAST_FREE = 512 << 20
LEAST_SHARE = 0.05
"""Bytes, and share of bytes or of inodes, of which less than the smaller one is a full disk."""
LEAST_MEMORY = 1 << 30
"""Bytes of memory of which less is too little, where workspaces are in memory."""
BLAMED = 256 << 20
"""Bytes beyond its source from which a sandbox is to blame."""
ENTRY = 4096
"""Bytes that count for an entry: its inode, its name, its block."""
LEVELS = 400
"""Depth below which a tree counts as too large: nothing else could be measured with few handles."""


async def wait_overfull(copies: Mapping[Path, Path], pid: int, most: int) -> str:
    """Return when the disk is full through a sandbox or what its processes hold open; the reason.

    ``copies``: each writable directory, the workspace first, and its source. ``pid``: the host's
    process whose descendants are the sandbox's. ``most``: bytes that a sandbox in memory may have
    beyond its sources.
    """
    workspace = next(iter(copies))
    in_memory = file_system(workspace) == TMPFS
    free = _free_bytes(workspace)
    while True:
        await asyncio.sleep(LOOK_S)
        shortage = find_shortage(workspace) if in_memory else find_full_disk(workspace)
        # Others write there too: measuring is dear, so it is done only where it may be so much.
        large = in_memory and free - _free_bytes(workspace) > most
        if not (shortage or large):
            continue
        taken = await asyncio.to_thread(measure_growth, copies, pid)
        if shortage and taken > BLAMED:
            return f"{shortage}, and the sandbox holds {taken >> 20} MB of it"
        if large and taken > most:
            return f"the sandbox holds {taken >> 20} MB of memory, more than {most >> 20} MB"
        await asyncio.sleep(AGAIN_S)


def find_shortage(path: Path) -> str:
    """Return what is used up of a file system in memory, "" if nothing is."""
    return find_full_disk(path) or ("the memory is full" if memory_room() < LEAST_MEMORY else "")


def find_full_disk(path: Path) -> str:
    """Return that a path's file system is full, "" if it is not."""
    return "the disk is full" if is_nearly_full(path) else ""


def _free_bytes(path: Path) -> int:
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize


def is_nearly_full(path: Path) -> bool:
    """Return whether little space or few inodes are left on a path's file system."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    least = min(LEAST_FREE, LEAST_SHARE * disk.f_blocks * disk.f_frsize)
    few = disk.f_files > 0 and disk.f_favail < LEAST_SHARE * disk.f_files
    return disk.f_bavail * disk.f_frsize < least or few


def measure_growth(copies: Mapping[Path, Path], pid: int) -> int:
    """Return the bytes of directories beyond their sources', with deleted files that are open."""
    grown = sum(measure(copy) - measure(source) for copy, source in copies.items())
    return grown + sum(_held_open(pid))


def measure(path: Path) -> int:
    """Return the bytes that a tree takes; a very deep one takes more than any limit."""
    try:
        levels = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)]
    except OSError:
        return 0
    total = 0
    waiting: list[Iterator[os.DirEntry[str]]] = []
    try:
        waiting.append(os.scandir(levels[0]))
        while waiting:
            entry = next(waiting[-1], None)
            if entry is None:
                waiting.pop()
                os.close(levels.pop())
                continue
            try:
                info = entry.stat(follow_symlinks=False)
                total += 512 * info.st_blocks + ENTRY
                if not stat.S_ISDIR(info.st_mode):
                    continue
                if len(levels) >= LEVELS:
                    return 1 << 62
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                levels.append(os.open(entry.name, flags, dir_fd=levels[-1]))
                waiting.append(os.scandir(levels[-1]))
            except OSError:  # gone meanwhile, or locked
                continue
    finally:
        for level in levels:
            os.close(level)
    return total


def _held_open(pid: int) -> Iterator[int]:
    """Yield the bytes of each deleted file that a process's descendants have open."""
    seen = set()
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return
    for process in processes:
        folder = f"/proc/{process.pid}/fd"
        try:
            handles = os.listdir(folder)  # noqa: PTH208 (names)
        except OSError:
            continue
        for handle in handles:
            try:
                info = os.stat(f"{folder}/{handle}")  # noqa: PTH116
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode) and not info.st_nlink:
                if (info.st_dev, info.st_ino) not in seen:
                    yield 512 * info.st_blocks
                seen.add((info.st_dev, info.st_ino))

"""Workspaces in memory: on disk, each file of a small repository costs more than the sandbox does.

A directory below /dev/shm bears the name of its backend (``orphans``), so that the next one removes
what a killed one left.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from runners.processes.process_names import PREFIX, is_stale
from runners.sandboxes.tree import remove_tree

SHARED_MEMORY = Path("/dev/shm")
LEAST_FREE = 1 << 30
LARGEST_SOURCE = 16 << 20
MOST_ENTRIES = 4000


def claim(name: str) -> Path | None:
    """Make a directory of that name in memory; None where there is none to execute from, or little
    room.
    """
    try:
        here = os.statvfs(SHARED_MEMORY)
        if here.f_bavail * here.f_frsize < LEAST_FREE or here.f_flag & os.ST_NOEXEC:
            return None
        directory = SHARED_MEMORY / name
        directory.mkdir(mode=0o700)
    except OSError:
        return None
    return directory


def fits(source: Path) -> bool:
    """Whether a source is small enough to be copied into memory for each sandbox."""
    size = entries = 0
    for directory, names, files in os.walk(source):
        entries += len(names) + len(files)
        with contextlib.suppress(OSError):
            size += sum((Path(directory) / name).lstat().st_size for name in files)
        if size > LARGEST_SOURCE or entries > MOST_ENTRIES:
            return False
    return True


def remove_orphans() -> None:
    """Remove the directories of backends whose process was killed."""
    for directory in SHARED_MEMORY.glob(f"{PREFIX}*"):
        if is_stale(directory.name):
            with contextlib.suppress(OSError):  # another user's
                remove_tree(directory)

"""Keep small workspaces in memory: on disk, creating their files costs more than the sandbox does.

Each backend has a directory below /dev/shm under its process-unique name (``process_names``), so a
later backend removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from runners.processes.process_names import PREFIX, is_stale
from runners.sandboxes.tree import remove_tree

SHARED_MEMORY = Path("/dev/shm")
LEAST_FREE = 1 << 30
"""Bytes free in /dev/shm below which it is left to others; containers often have 64 MB."""
LARGEST_SOURCE = 16 << 20
"""Bytes of a source that is copied into memory for each sandbox; hundreds may be open at once."""
MOST_ENTRIES = 4000


def claim_directory(name: str) -> Path | None:
    """Make a directory in memory and return it.

    None where /dev/shm is missing, nearly full, or mounted noexec: a workspace holds programs.
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


def is_small(source: Path) -> bool:
    """Return whether a source is small enough to be copied into memory for each sandbox."""
    size = entries = 0
    for directory, names, files in os.walk(source):
        entries += len(names) + len(files)
        with contextlib.suppress(OSError):
            size += sum((Path(directory) / name).lstat().st_size for name in files)
        if size > LARGEST_SOURCE or entries > MOST_ENTRIES:
            return False
    return True


def remove_stale_directories() -> None:
    """Remove the directories of backends whose process was killed."""
    for directory in SHARED_MEMORY.glob(f"{PREFIX}*"):
        if is_stale(directory.name):
            with contextlib.suppress(OSError):  # another user's
                remove_tree(directory)

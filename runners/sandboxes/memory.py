"""Workspaces in memory: on disk, each file of a small repository costs more than the sandbox does.

A directory below /dev/shm bears the pid of its owner, so that the next run removes what a killed
one left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

from runners.sandboxes.tree import remove_tree

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "agentrl-"
LEAST_FREE = 1 << 30
LARGEST_SOURCE = 16 << 20
MOST_ENTRIES = 4000
_numbers = itertools.count()


def claim() -> Path | None:
    """Make a directory in memory; None where there is none to execute from, or little room."""
    try:
        here = os.statvfs(SHARED_MEMORY)
        if here.f_bavail * here.f_frsize < LEAST_FREE or here.f_flag & os.ST_NOEXEC:
            return None
        _remove_orphans()
        directory = SHARED_MEMORY / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        remove_tree(directory)
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


def _remove_orphans() -> None:
    for directory in SHARED_MEMORY.glob(f"{PREFIX}*-*"):
        owner = directory.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):  # another user's
                remove_tree(directory)

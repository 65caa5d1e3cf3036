"""A file system of a size that a test sets while it is in use."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted tmpfs."""

    place: Path

    def resize(self, kilobytes: int) -> None:
        """Set its size, in 1024 bytes; raises CalledProcessError if it holds more."""
        _mount(self.place, f"remount,size={kilobytes}k").check_returncode()


@contextmanager
def mount_small_disk(place: Path) -> Iterator[SmallDisk]:
    """Mount a disk of 40 kB; skip the test where this process may not."""
    place.mkdir()
    made = _mount(place, "size=40k")
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _mount(place: Path, options: str) -> subprocess.CompletedProcess[bytes]:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    return subprocess.run(command, capture_output=True, check=False)

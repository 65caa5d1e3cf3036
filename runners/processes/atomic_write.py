"""Making what is kept in the cache (``conf/cache.py``): an entry is complete or absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.processes.process_names import is_stale, make_unique_name


@contextmanager
def atomic_directory(place: Path) -> Iterator[Path]:
    """Give a directory beside ``place``, which takes its name when the block ends without an error.

    If another process was faster, its directory stays. What killed processes left half built goes.
    Raises OSError.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    for other in place.parent.glob(f".{place.name}.*"):
        if is_stale(other.name.rpartition(".")[2]):
            shutil.rmtree(other, ignore_errors=True)
    directory = place.with_name(f".{place.name}.{make_unique_name()}")
    directory.mkdir()
    try:
        yield directory
        try:
            directory.rename(place)
        except OSError:
            if not place.exists():
                raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)

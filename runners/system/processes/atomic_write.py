"""Write files and directories that are complete or absent, never half written.

The content is written under another name beside the target and then renamed: rename(2) replaces a
name in one step, but only within one file system, hence "beside".
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runners.system.processes.process_names import is_stale, make_unique_name

PARTIAL = ".partial"


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a path beside ``target``; the file written there replaces it when the block succeeds.

    If the block raises, the target stays as it is. Files that killed processes left half written
    are removed. Raises OSError.

        with atomic_file(run_dir / "report.html") as partial:
            partial.write_text(page, "utf-8")
    """
    for other in target.parent.glob(f".{glob.escape(target.name)}.*{PARTIAL}"):
        if is_stale(other.name.removesuffix(PARTIAL).rpartition(".")[2]):
            other.unlink(missing_ok=True)
    partial = target.parent / f".{target.name}.{make_unique_name()}{PARTIAL}"
    try:
        yield partial
        partial.replace(target)
    finally:
        with suppress(OSError):  # after the rename there is none; another error must stay visible
            partial.unlink()


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``target`` that gets its name when the block succeeds.

    If another process was faster, its directory stays: the caller then uses that one. Directories
    that killed processes left half built are removed. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in target.parent.glob(f".{glob.escape(target.name)}.*"):
        if is_stale(other.name.rpartition(".")[2]):
            shutil.rmtree(other, ignore_errors=True)
    partial = target.with_name(f".{target.name}.{make_unique_name()}")
    partial.mkdir()
    try:
        yield partial
        try:
            partial.rename(target)
        except OSError:
            if not target.exists():  # otherwise another process made the same entry meanwhile
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)

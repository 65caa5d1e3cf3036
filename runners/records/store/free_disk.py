"""The space that is left on the disk of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

_MB = 1_000_000


def measure_free_mb(run_dir: Path) -> float | None:
    """Return the free space of a directory's file system in MB; None if it does not tell."""
    try:
        return round(shutil.disk_usage(run_dir).free / _MB, 1)
    except OSError:
        return None

"""Delete a job's older checkpoints: ``run.keep_checkpoints`` of them and the best one stay.

Megatron writes ``iter_0000009`` after slime's rollout 9, our step 10, and that number into
``latest_checkpointed_iteration.txt`` once the checkpoint is whole. Invariant: that one and newer
ones, which may be under way, are never touched.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

NEWEST = "latest_checkpointed_iteration.txt"


def find_newest(root: Path) -> int:
    """Return the number of steps in the newest whole checkpoint; 0 if there is none yet."""
    try:
        return int((root / NEWEST).read_text("ascii")) + 1
    except (OSError, ValueError):  # or only the converted one ("release")
        return 0


def remove_old_checkpoints(root: Path, *, keep: int, rates: Mapping[int, float]) -> list[int]:
    """Delete all whole checkpoints but the ``keep`` newest and the one with the best evaluation,
    the earliest of equals; return the steps of those that are gone.

    ``rates``: solve rate of each evaluation, by the number of steps before it. A checkpoint that
    cannot be deleted stays.
    """
    if not (newest := find_newest(root)):
        return []
    found = {
        int(match[1]) + 1: path
        for path in root.iterdir()
        if (match := re.fullmatch(r"iter_(\d{7})", path.name))
    }
    whole = sorted(step for step in found if step <= newest)
    measured = [step for step in whole if step in rates]
    best = max(measured, key=lambda step: (rates[step], -step), default=None)
    gone = [step for step in whole[:-keep] if step != best]
    for step in gone:
        shutil.rmtree(found[step], ignore_errors=True)
    return gone

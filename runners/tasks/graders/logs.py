"""Logs of the tests: the whole log in a file per patch, its end in the verdict."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from runners.processes.atomic_write import atomic_file
from runners.tasks.contract import Patch, Verdict, VerdictKind

FOLDER = Path("logs", "grading")
"""Below a run's directory."""
TAIL = 4000
"""Characters of the log that a verdict keeps."""


def log_file(run_dir: Path, task_id: str, patch: Patch) -> Path:
    """Return the path of a patch's log."""
    return run_dir / FOLDER / task_id / f"{patch.sha256}.txt"


def cut_log(verdict: Verdict) -> Verdict:
    """Return a verdict with the end of its log."""
    return replace(verdict, log=verdict.log[-TAIL:])


async def keep_log(run_dir: Path, task_id: str, patch: Patch, verdict: Verdict) -> None:
    """Write a verdict's log below ``run_dir``; a file that cannot be written is given up.

    The log of an infra verdict does not replace one that is there.
    """
    if not verdict.log:
        return
    file, replaces = log_file(run_dir, task_id, patch), verdict.kind is not VerdictKind.INFRA
    with contextlib.suppress(OSError):  # the verdict is worth more than its log
        await asyncio.to_thread(_write, file, verdict.log, replaces=replaces)


def _write(file: Path, text: str, *, replaces: bool) -> None:
    if not replaces and file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as partial:
        partial.write_text(text, "utf-8")

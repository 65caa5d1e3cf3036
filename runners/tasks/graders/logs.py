"""What the tests printed: whole in a file per patch where a benchmark is measured, its end in the
verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from runners.processes.atomic_write import atomic_file
from runners.tasks.contract import Grader, Patch, Task, Verdict, VerdictKind

FOLDER = Path("logs", "grading")
"""In a run's directory."""
TAIL = 4000
"""Characters that a verdict keeps."""


def log_file(run_dir: Path, task_id: str, patch: Patch) -> Path:
    """Return where the log of a patch is kept."""
    return run_dir / FOLDER / task_id / f"{patch.sha256}.txt"


class KeptLogs:
    """Keeps the log of each grading below ``run_dir`` (None: of none), and cuts it in the verdict.

    A log that cannot be kept is no reason to lose the verdict, and a grading that failed none to
    lose the log of one that did not.
    """

    def __init__(self, grader: Grader, run_dir: Path | None) -> None:
        self._grader = grader
        self._run_dir = run_dir

    async def grade(self, task: Task, patch: Patch, *, name: str, deadline_s: float) -> Verdict:
        """Grade."""
        found = await self._grader.grade(task, patch, name=name, deadline_s=deadline_s)
        if self._run_dir is not None and found.log:
            file = log_file(self._run_dir, task.id, patch)
            failed = found.kind is VerdictKind.INFRA
            with contextlib.suppress(OSError):
                await asyncio.to_thread(_write, file, found.log, keep=failed)
        return replace(found, log=found.log[-TAIL:])


def _write(file: Path, text: str, *, keep: bool) -> None:
    """Write a log; ``keep``: the one that is there stays."""
    if keep and file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as partial:
        partial.write_text(text, "utf-8")

"""The checkpoints of a run on disk: their names, what their trainer stored, and which are complete.

``<run>/checkpoints/step-000012/`` holds the policy *after* twelve steps. Invariant: a directory of
that name is complete. ``best`` beside it is a link to the one with the best evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode

CHECKPOINTS = "checkpoints"
"""Directory of a run's checkpoints, in its run directory."""
BEST = "best"
"""Link to the checkpoint with the best evaluation, among the checkpoints."""
STATE = "trainer_state.json"
"""File of the trainer's state and its step's metrics, in a checkpoint."""
ADAPTER = "adapter"
"""Directory of the LoRA adapters in a checkpoint."""
PARTIAL = ".partial"
"""End of the name of a directory that is being written, or deleted."""


class CheckpointError(AgentrlError):
    """A checkpoint cannot be written (exit code 4: the run can be resumed) or read (5)."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.DATA_REFUSED) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    """Training steps done: the weight version."""

    def state(self) -> dict[str, Any]:
        """Return the ``state`` that ``save`` was given; raises CheckpointError."""
        state: dict[str, Any] = self._document()["state"]
        return state

    def run_id(self) -> str | None:
        """Return the id of the run that wrote it, None if it is older than ids of runs; raises
        CheckpointError.
        """
        run_id: str | None = self._document().get("run")
        return run_id

    def _document(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.path / STATE).read_text())
            document["state"]["metrics"]  # the first thing that a resumed run reads
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"checkpoint {self.path} is damaged ({error}): restore it from a copy, or "
                "remove it and add --rewind"
            ) from error
        return document


def find_best(root: Path, rates: Mapping[int, float]) -> Checkpoint | None:
    """Return the checkpoint with the highest held-out solve rate, of equals the earliest.

    ``rates``: by step. None if no step with a rate has a checkpoint; the starting policy has none.
    """
    rated = [checkpoint for checkpoint in find_complete(root) if checkpoint.step in rates]
    return max(rated, key=lambda checkpoint: rates[checkpoint.step], default=None)


def directory_name(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step:06d}"


def directory(root: Path, step: int) -> Path:
    """Return the directory of a step's checkpoint below ``root``."""
    return root / directory_name(step)


def find_complete(root: Path) -> list[Checkpoint]:
    """Return the complete checkpoints below ``root``, the oldest first."""
    if not root.is_dir():
        return []
    return sorted(
        (
            Checkpoint(path, int(path.name.removeprefix("step-")))
            for path in root.glob("step-*")
            if path.suffix != PARTIAL
        ),
        key=lambda checkpoint: checkpoint.step,
    )


def find_latest(root: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint below ``root``, or None."""
    found = find_complete(root)
    return found[-1] if found else None

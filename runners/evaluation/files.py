"""The files of an evaluation in its run directory."""

from __future__ import annotations

from pathlib import Path

from runners.processes.atomic_write import atomic_file
from runners.store.store_error import to_store_error

REPORT = "report.json"
CALIBRATION = "calibration.json"


def prediction_name(sample: int) -> str:
    """Return the file of each task's rollout ``sample`` (0, 1, …): SWE-bench's tools take one
    prediction per task, so every sample has a file of its own.
    """
    return "predictions.jsonl" if not sample else f"predictions-{sample + 1}.jsonl"


def replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises StoreError."""
    try:
        with atomic_file(path) as partial:
            partial.write_text(text, "utf-8")
    except OSError as error:
        raise to_store_error(error, path) from error

"""Names of an evaluation's files in its run directory."""

from __future__ import annotations

from pathlib import Path

from runners.records.store import raise_store_errors
from runners.system.processes import atomic_file

REPORT = "report.json"
CALIBRATION = "calibration.json"


def prediction_name(sample: int) -> str:
    """Return the name of the file with rollout number ``sample`` (0, 1, …) of each task.

    SWE-bench's tools accept one prediction per task, so every sample has its own file.
    """
    return "predictions.jsonl" if not sample else f"predictions-{sample + 1}.jsonl"


def replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises StoreError."""
    with raise_store_errors(path), atomic_file(path) as partial:
        partial.write_text(text, "utf-8")

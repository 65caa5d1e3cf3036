"""Writes and validates ``trajectories.jsonl``: one ``Trajectory`` in strict JSON per line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from runners.export.contract import AddRollout, ExportedRollout, ExportedRun
from runners.export.trajectory import Trajectory
from runners.export.validation import find_contradictions
from runners.store.json_text import dumps, loads

NAME = "trajectories.jsonl"
_MAX_FAULTS = 100
"""A file with more faults is broken as a whole; further ones add nothing."""


@contextmanager
def write_jsonl(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Write a line per rollout."""
    with (folder / NAME).open("wb") as file:

        def add(rollout: ExportedRollout) -> None:
            file.write(dumps(rollout.trajectory).encode() + b"\n")

        yield add


def validate(path: Path) -> list[str]:
    """Return the faults of a ``trajectories.jsonl`` with their line numbers: lines that violate the
    schema, and rollouts that contradict themselves. Raises OSError.
    """
    found: list[str] = []
    seen: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            found += [f"line {number}: {fault}" for fault in _line_faults(line, number, seen)]
            if len(found) > _MAX_FAULTS:
                return [*found[:_MAX_FAULTS], "… and more"]
    return found


def _line_faults(line: bytes, number: int, seen: dict[str, int]) -> list[str]:
    if not line.endswith(b"\n"):
        return ["cut off (no newline at its end)"]
    try:
        loads(line)  # stricter than pydantic: no NaN, no lone surrogates
        record = Trajectory.model_validate_json(line)
    except ValidationError as error:
        return [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)[:5]
        ]
    except ValueError as error:
        return [f"not strict JSON: {error}"]
    first = seen.setdefault(record.rollout_id, number)
    again = [] if first == number else [f"{record.rollout_id} is on line {first} already"]
    return again + find_contradictions(record)

"""``trajectories.jsonl``: one strict JSON object per rollout, in the form of ``Trajectory``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from runners.export.contract import Add, Rollout, Run
from runners.export.trajectory import Trajectory
from runners.export.validation import faults
from runners.store.json_text import dumps, loads

NAME = "trajectories.jsonl"
_MAX_FAULTS = 100
"""A file with more is broken as a whole; the rest adds nothing."""


@contextmanager
def jsonl(folder: Path, run: Run) -> Iterator[Add]:
    """Write a line per rollout."""
    with (folder / NAME).open("wb") as file:

        def add(rollout: Rollout) -> None:
            file.write(dumps(rollout.trajectory).encode() + b"\n")

        yield add


def validate(path: Path) -> list[str]:
    """Return what is wrong in a ``trajectories.jsonl``, in form or in itself, with line numbers;
    empty if nothing. Raises OSError.
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
    return again + faults(record)

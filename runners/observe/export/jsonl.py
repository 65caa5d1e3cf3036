"""Writes and validates ``trajectories.jsonl``: one ``Trajectory`` in strict JSON per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from runners.observe.export.contract import AddRollout, ExportedRollout, ExportedRun
from runners.observe.export.trajectory import Trajectory
from runners.observe.export.validation import find_contradictions
from runners.records.text import dumps, loads

NAME = "trajectories.jsonl"
M = TypeVar("M", bound=BaseModel)
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
    return find_faults(path, Trajectory, "rollout_id", find_contradictions)


def find_faults(
    path: Path, model: type[M], key: str, contradictions: Callable[[M], list[str]]
) -> list[str]:
    """Return the faults of a file of strict JSON, a ``model`` per line, with their line numbers.

    ``key``: field that no two lines share; ``contradictions`` are those of a line whose form is
    valid. Raises OSError.
    """
    found: list[str] = []
    seen: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            read = _read_line(line, model)
            if isinstance(read, list):
                found += [f"line {number}: {fault}" for fault in read]
            else:
                name = getattr(read, key)
                first = seen.setdefault(name, number)
                if first != number:
                    found.append(f"line {number}: {name} is on line {first} already")
                found += [f"line {number}: {fault}" for fault in contradictions(read)]
            if len(found) > _MAX_FAULTS:
                return [*found[:_MAX_FAULTS], "… and more"]
    return found


def _read_line(line: bytes, model: type[M]) -> M | list[str]:
    """Return the line's object, or what is wrong with its form."""
    if not line.endswith(b"\n"):
        return ["cut off (no newline at its end)"]
    try:
        loads(line)  # stricter than pydantic: no NaN, no lone surrogates
        return model.model_validate_json(line)
    except ValidationError as error:
        return [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)[:5]
        ]
    except ValueError as error:
        return [f"not strict JSON: {error}"]

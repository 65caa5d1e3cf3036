"""Rows of a file or of a dataset on the hub, each with its location.

Nothing is skipped silently: a malformed row is yielded as its problem.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from runners.tasks.hub import fetch_split, is_dataset_name

Rows = Iterator[tuple["RowLocation", dict[str, Any] | str]]
"""Every row with its location, or its problem as text."""


NESTED = "brackets in brackets, deeper than can be read"


class DatasetError(AgentrlError):
    """A dataset cannot be read, or has malformed rows; the message names all of them."""

    exit_code = ExitCode.DATA_REFUSED


@dataclass(frozen=True, slots=True)
class RowLocation:
    """Location of a row, printed as ``source:number``."""

    source: str
    number: int
    """Line in a JSONL file, else the row's number; from 1."""

    def __str__(self) -> str:
        return f"{self.source}:{self.number}"


def check_path(path: str) -> None:
    """Raise DatasetError unless ``path`` is a readable file or may be a name on the hub."""
    file = Path(path)
    if file.is_file():
        if file.suffix not in READERS:
            raise DatasetError(f"task.path={path} is not a .jsonl, .json or .parquet file")
    elif not is_dataset_name(path) or file.exists() or file.suffix in READERS:
        raise DatasetError(
            f"task.path={path}: there is no such file, and it is not a dataset name of the hub"
        )


def read_rows(path: str) -> Rows:
    """Read a file, or a split of a dataset on the hub; raises DatasetError and HubError."""
    check_path(path)
    file = Path(path)
    for part in [file] if file.is_file() else fetch_split(path):
        try:
            yield from READERS[part.suffix](part)
        except OSError as error:
            raise DatasetError(f"task.path={path} cannot be read: {error}") from error


def _read_jsonl(file: Path) -> Rows:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row: dict[str, Any] | str
            try:
                row = _check_object(json.loads(line.rstrip(b"\r\n")))
            except json.JSONDecodeError as error:
                row = f"not JSON: {error.msg} at column {error.colno}"
            except ValueError as error:
                row = f"not JSON: {error}"
            except RecursionError:
                row = NESTED
            yield RowLocation(file.name, number), row


def _read_json(file: Path) -> Rows:
    try:
        rows = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = NESTED if isinstance(error, RecursionError) else f"not JSON: {error}"
        raise DatasetError(f"task.path={file}: {reason}") from error
    if not isinstance(rows, list):
        raise DatasetError(f"task.path={file} is not a list of rows")
    for number, row in enumerate(rows, 1):
        yield RowLocation(file.name, number), _check_object(row)


def _read_parquet(file: Path) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DatasetError(
            f"task.path={file} needs pyarrow to be read: pip install 'agentrl[parquet]'"
        ) from error
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield RowLocation(file.name, number), _check_object(row)
    except pyarrow.ArrowException as error:
        raise DatasetError(f"task.path={file} is not a Parquet file: {error}") from error


def _check_object(row: object) -> dict[str, Any] | str:
    return row if isinstance(row, dict) else f"a row must be an object, not {type(row).__name__}"


READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
"""Readers by the suffix of the file's name."""

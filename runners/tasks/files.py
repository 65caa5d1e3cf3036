"""Rows of a file or of a dataset on the hub, each with its place; nothing is skipped in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
SPLIT = "test"
"""Where SWE-bench's datasets have their instances."""


class DatasetError(AgentrlError):
    """A dataset cannot be read, or has malformed rows: all of them are named."""

    exit_code = ExitCode.DATA_REFUSED


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands."""

    source: str
    number: int
    """Line of a JSONL file, else the row's number; from 1."""

    def __str__(self) -> str:
        return f"{self.source}:{self.number}"


def rows_of(path: str) -> Iterator[tuple[Place, dict[str, Any] | str]]:
    """Yield every row, or in its place what is wrong with it; raises DatasetError."""
    file = Path(path)
    if file.is_file():
        reader = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet}.get(file.suffix)
        if reader is None:
            raise DatasetError(f"task.path={path} is no .jsonl, .json or .parquet file")
        try:
            yield from reader(file)
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"task.path={path} cannot be read: {error}") from error
    elif HUB_NAME.fullmatch(path) and not file.exists():
        yield from _hub(path)
    else:
        raise DatasetError(f"task.path={path}: there is no such file, and it is no name of the hub")


def _jsonl(file: Path) -> Iterator[tuple[Place, dict[str, Any] | str]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield Place(file.name, number), _object(json.loads(line))
            except (ValueError, UnicodeDecodeError) as error:
                yield Place(file.name, number), f"no JSON: {error}"


def _json(file: Path) -> Iterator[tuple[Place, dict[str, Any] | str]]:
    try:
        rows = json.loads(file.read_bytes())
    except ValueError as error:
        raise DatasetError(f"task.path={file}: no JSON: {error}") from error
    if not isinstance(rows, list):
        raise DatasetError(f"task.path={file} is no list of rows")
    for number, row in enumerate(rows, 1):
        yield Place(file.name, number), _object(row)


def _parquet(file: Path) -> Iterator[tuple[Place, dict[str, Any] | str]]:
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
                    yield Place(file.name, number), _object(row)
    except pyarrow.ArrowException as error:
        raise DatasetError(f"task.path={file} is no Parquet file: {error}") from error


def _hub(path: str) -> Iterator[tuple[Place, dict[str, Any] | str]]:
    name, _, split = path.partition(":")
    try:
        import datasets
    except ImportError as error:
        raise DatasetError(
            f"task.path={path} is no file; to read it from the hub: pip install datasets"
        ) from error
    try:
        rows = datasets.load_dataset(name, split=split or SPLIT)
    except Exception as error:  # whatever the client raises, the network is its business
        text = " ".join(str(error).split())[:300]
        raise DatasetError(
            f"task.path={path} is no file and cannot be had from the hub ({text}): download it "
            "where there is a network, and give the Parquet file"
        ) from error
    for number, row in enumerate(rows, 1):
        yield Place(path, number), _object(row)


def _object(row: object) -> dict[str, Any] | str:
    return row if isinstance(row, dict) else f"a row is an object, not {type(row).__name__}"

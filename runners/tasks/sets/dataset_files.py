"""Rows of a file or of a dataset on the hub, each with its location.

Nothing is skipped silently: a malformed row is yielded as its problem.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from runners.records.text import make_printable, shorten
from runners.tasks.section_keys import name_key
from runners.tasks.sets.hub import fetch_split, is_dataset_name

Rows = Iterator[tuple["RowLocation", dict[str, Any] | str]]
"""Every row with its location, or its problem as text."""


NESTED = "brackets in brackets, deeper than can be read"
ROW_LIMIT = 64 << 20
"""Bytes of a line; the largest rows of published sets have a few."""
FILE_LIMIT = 512 << 20
"""Bytes of a ``.json`` file."""


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
            raise DatasetError(f"{name_key('path')}={path} is not a .jsonl, .json or .parquet file")
    elif not is_dataset_name(path) or file.exists() or file.suffix in READERS:
        raise DatasetError(
            f"{name_key('path')}={path}: there is no such file, and it is not a dataset name "
            "of the hub"
        )


def find_parts(path: str) -> list[Path]:
    """Return the files of a dataset in order: itself, or a split on the hub.

    Raises DatasetError and HubError.
    """
    check_path(path)
    file = Path(path)
    return [file] if file.is_file() else fetch_split(path)


def read_rows(path: str) -> Rows:
    """Read the rows of a dataset one at a time; raises DatasetError and HubError."""
    for part in find_parts(path):
        try:
            yield from READERS[part.suffix](part)
        except OSError as error:
            raise DatasetError(f"{name_key('path')}={path} cannot be read: {error}") from error


def _read_jsonl(file: Path) -> Rows:
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(ROW_LIMIT + 1):
            number += 1
            location = RowLocation(file.name, number)
            if len(line) > ROW_LIMIT:
                while line and not line.endswith(b"\n"):
                    line = lines.readline(ROW_LIMIT)
                yield location, f"longer than {ROW_LIMIT >> 20} MiB"
                continue
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield location, _parse_row(line)


def _parse_row(line: bytes) -> dict[str, Any] | str:
    """Return the object of a line, or its problem."""
    try:
        return _check_object(_parse(line))
    except ValueError as error:
        return str(error)


def _parse(content: bytes) -> Any:
    """Return the value of a JSON text; raises ValueError, which names the problem."""
    try:
        return DECODER.decode(content.decode("utf-8").rstrip("\r\n"))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        byte = f"byte {content[error.start]:#x} at position {error.start + 1}"
        raise ValueError(f"not UTF-8: {byte}") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(NESTED) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shorten(make_printable(repr(twice)), 60)} is there twice")
    return found


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_number)
"""Refuses what readers of JSON disagree on: a key given twice, NaN and infinities."""


def _read_json(file: Path) -> Rows:
    if file.stat().st_size > FILE_LIMIT:
        limit = f"{FILE_LIMIT >> 20} MiB, and is read whole"
        raise DatasetError(
            f"{name_key('path')}={file} is larger than {limit}: write its rows as JSONL"
        )
    try:
        rows = _parse(file.read_bytes().removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise DatasetError(f"{name_key('path')}={file}: {error}") from error
    if not isinstance(rows, list):
        raise DatasetError(f"{name_key('path')}={file} is not a list of rows")
    for number, row in enumerate(rows, 1):
        yield RowLocation(file.name, number), _check_object(row)


def _read_parquet(file: Path) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DatasetError(
            f"{name_key('path')}={file} needs pyarrow to be read: "
            "pip install 'agentrl-campaigns[parquet]'"
        ) from error
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield RowLocation(file.name, number), _check_object(row)
    except pyarrow.ArrowException as error:
        raise DatasetError(f"{name_key('path')}={file} is not a Parquet file: {error}") from error


def _check_object(row: object) -> dict[str, Any] | str:
    return row if isinstance(row, dict) else f"a row must be an object, not {type(row).__name__}"


READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
"""Readers by the suffix of the file's name."""

"""Derives a table and its rows from record classes: ``decode(encode(record)) == record``.

The type of a field says how its column is written: numbers as they are, text as valid UTF-8,
enumerations as their values, dictionaries and lists as strict JSON. Only what an array file holds
is encoded elsewhere (``arrays.py``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Container
from dataclasses import MISSING, dataclass
from enum import StrEnum
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin

from runners.records.declaration import RecordField, record_fields
from runners.records.text import clean_text, dumps, loads

Row = dict[str, Any]
Codec = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One column: its definition, and how a record's value gets into it."""

    name: str
    key: bool
    definition: str
    """``reward REAL``, ``extra TEXT NOT NULL DEFAULT '{}'``."""
    read: Callable[[Any], Any]
    """Takes the value from its record."""
    encode: Codec | None
    """None: SQLite takes the value as it is."""
    default: Any
    """Value where a row of an older run has no such column; MISSING: every run has it."""


class RecordTable:
    """The columns of a table that hold records of the given classes, side by side."""

    def __init__(self, name: str, *records: type, references: str = "", rowid: bool = True) -> None:
        """Derive the columns.

        ``references``: the clause of a foreign key; ``rowid``: rows lie in order of insertion, else
        in order of the key.
        """
        self.name = name
        self._references = [references] if references else []
        self._rowid = rowid
        self._columns = {record: _columns_of(record) for record in records}
        self.columns = [column for part in self._columns.values() for column in part.values()]
        self._writers = [
            [(column.name, column.read, column.encode) for column in part.values()]
            for part in self._columns.values()
        ]

    @cached_property
    def create(self) -> str:
        """The statement that creates the table."""
        keys = ", ".join(column.name for column in self.columns if column.key)
        unique = f"{'UNIQUE' if self._rowid else 'PRIMARY KEY'} ({keys})"
        lines = [*(column.definition for column in self.columns), unique, *self._references]
        body = ",\n    ".join(lines)
        options = "STRICT" if self._rowid else "STRICT, WITHOUT ROWID"
        return f"CREATE TABLE {self.name} (\n    {body}\n) {options};\n"

    @cached_property
    def insert(self) -> str:
        """The statement that adds a row from named parameters."""
        names = [column.name for column in self.columns]
        values = ", ".join(f":{name}" for name in names)
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({values})"

    def insert_many(self, rows: int) -> str:
        """Return the statement that adds so many rows from the values of all, one after the other.

        SQLite takes the interpreter from others once for a statement, not once for each row.
        """
        names = [column.name for column in self.columns]
        row = f"({', '.join('?' * len(names))})"
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES {', '.join([row] * rows)}"

    @cached_property
    def upsert(self) -> str:
        """The statement that adds a row, or overwrites the row with its key."""
        keys = ", ".join(column.name for column in self.columns if column.key)
        changes = ", ".join(f"{c.name} = excluded.{c.name}" for c in self.columns if not c.key)
        return f"{self.insert} ON CONFLICT ({keys}) DO UPDATE SET {changes}"

    def add_missing(self, present: Container[str]) -> list[str]:
        """Return the statements that add what a table of an older run lacks; raises ValueError if
        its rows could have no value for a column.
        """
        missing = [column for column in self.columns if column.name not in present]
        for column in missing:
            if column.default is MISSING:
                raise ValueError(f"column {self.name}.{column.name} is new and has no default")
        return [f"ALTER TABLE {self.name} ADD COLUMN {column.definition}" for column in missing]

    def encode(self, *records: Any) -> Row:
        """Return the row of records, given in the order of the table's classes."""
        return {
            name: read(record) if encode is None else encode(read(record))
            for record, writers in zip(records, self._writers, strict=True)
            for name, read, encode in writers
        }

    def decode(self, record: type, row: sqlite3.Row) -> dict[str, Any]:
        """Return the arguments that make the part of a row that is a ``record``."""
        # not dict(row), which searches the columns for each name
        return _decode(record, dict(zip(row.keys(), row, strict=True)))


def _decode(record: type, row: Row) -> dict[str, Any]:
    columns, nested = _readers_of(record)
    values: dict[str, Any] = {}
    for name, column, decode, default in columns:
        if column not in row:  # a run from before the field
            values[name] = default
        else:
            values[name] = row[column] if decode is None else decode(row[column])
    for name, inner in nested:
        values[name] = inner(**_decode(inner, row))
    return values


@cache
def _readers_of(
    record: type,
) -> tuple[list[tuple[str, str, Codec | None, Any]], list[tuple[str, Any]]]:
    """Return (field, column, decode, default) of a record's columns, and its nested records."""
    fields = record_fields(record)
    columns = [
        (field.name, field.column, _codec(field)[2], field.default)
        for field in fields
        if field.column is not None
    ]
    return columns, [(field.name, field.inner) for field in fields if field.nested]


def _columns_of(record: type, path: str = "") -> dict[str, ColumnSpec]:
    """Return the columns of a record's fields, those of a nested record in its place."""
    columns: dict[str, ColumnSpec] = {}
    for field in record_fields(record):
        if field.column is not None:
            columns[field.column] = _column(field, f"{path}{field.name}")
        elif field.nested:
            columns |= _columns_of(field.inner, f"{path}{field.name}.")
    return columns


def _column(field: RecordField, path: str) -> ColumnSpec:
    assert field.column is not None
    sql, encode, _ = _codec(field)
    required = not field.optional or encode is dumps  # JSON writes None as null
    definition = f"{field.column} {sql}{' NOT NULL' if required else ''}"
    if field.default is not MISSING and field.default is not None:
        value = encode(field.default) if encode else field.default
        definition += f" DEFAULT {_literal(value)}"
    return ColumnSpec(field.column, field.key, definition, attrgetter(path), encode, field.default)


def _codec(field: RecordField) -> tuple[str, Codec | None, Codec | None]:
    """Return the SQL type of a field, and the functions to and from it."""
    kind = get_origin(field.inner) or field.inner
    if kind in (dict, list, tuple):
        return "TEXT", dumps, loads
    if kind is bool:
        return "INTEGER", None, _optional(bool)
    if kind is int:
        return "INTEGER", None, None
    if kind is float:
        return "REAL", None, None
    if kind is str or (kind is Literal and isinstance(get_args(field.inner)[0], str)):
        return "TEXT", _optional(clean_text), None
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "TEXT", None, _optional(kind)
    raise TypeError(f"no column holds {field.name}: {field.type}")


def _optional(convert: Codec) -> Codec:
    return lambda value: None if value is None else convert(value)


def _literal(value: Any) -> str:
    """Return a default as SQL writes it."""
    if isinstance(value, bool | int | float):
        return str(+value)
    return "'{}'".format(str(value).replace("'", "''"))

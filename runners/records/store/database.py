"""One SQLite connection with transactions, whose every failure is a ``StoreError``.

A connection belongs to the thread that opened it. With WAL and ``synchronous=NORMAL`` a commit
survives the death of the process; only a power cut may lose the last ones.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from runners.records.store.store_error import to_store_error

Parameters = Sequence[Any] | Mapping[str, Any]

_BUSY_S = 30.0
"""Time to wait for another process's transaction. Ours last microseconds; machines stall."""
_WRONG_CALLS = (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE)
"""Error codes of wrong SQL and wrong use: defects of ours, which keep their own exception."""


class Database:
    """A connection; every failure is a ``StoreError``."""

    def __init__(self, path: Path, mode: Literal["ro", "rw", "rwc"]) -> None:
        self.path = path
        with self.translate_errors():
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}&immutable={_is_immutable(path, mode):d}",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
            )
            self._db.row_factory = sqlite3.Row
            try:
                if mode != "ro":
                    self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                self._db.close()
                raise

    def rows(self, sql: str, parameters: Parameters = ()) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        with self.translate_errors():
            return self._db.execute(sql, parameters).fetchall()

    def iterate(self, sql: str, parameters: Parameters = ()) -> Iterator[sqlite3.Row]:
        """Yield the rows of a query, one at a time."""
        with self.translate_errors():
            yield from self._db.execute(sql, parameters)

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run one statement, a transaction of its own outside ``write``; returns rows changed."""
        with self.translate_errors():
            return self._db.execute(sql, parameters).rowcount

    @contextmanager
    def write(self) -> Iterator[None]:
        """Run the statements of the block as one transaction."""
        with self.translate_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back on a full disk
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and the file system into StoreError, save those of a wrong call."""
        try:
            yield
        except (sqlite3.DatabaseError, OSError) as error:
            if isinstance(error, sqlite3.Error) and _code(error) in _WRONG_CALLS:
                raise
            raise to_store_error(error, self.path) from error

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


def _is_immutable(path: Path, mode: str) -> bool:
    """Return whether to open a file as immutable.

    A reader of a WAL database writes shared memory beside it, which a read-only directory refuses.
    Without a WAL file nobody writes, so the file can be read as it is.
    """
    wal = path.with_name(f"{path.name}-wal")
    frozen = not os.access(path.parent, os.W_OK, effective_ids=True)
    return mode == "ro" and frozen and not wal.exists()


def _code(error: sqlite3.Error) -> int | None:
    return getattr(error, "sqlite_errorcode", None)  # absent when Python itself found the fault

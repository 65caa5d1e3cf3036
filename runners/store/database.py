"""One SQLite connection: transactions, and one place where its errors become ours.

A connection belongs to the thread that opened it. WAL with ``synchronous=NORMAL``: a commit
survives the death of the process; only a power cut may take the last ones.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from runners.store.store_error import to_store_error

Parameters = Sequence[Any] | Mapping[str, Any]

_BUSY_S = 30.0
"""Wait this long for another process's transaction; ours last microseconds, machines stall."""
_WRONG_CALLS = (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE)
"""Error codes of faulty SQL and faulty use: defects, not failures."""


class Database:
    """A connection; every failure is a ``StoreError``."""

    def __init__(self, path: Path, mode: Literal["ro", "rw", "rwc"]) -> None:
        self.path = path
        with self.guarded():
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}&immutable={_still(path, mode):d}",
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
        with self.guarded():
            return self._db.execute(sql, parameters).fetchall()

    def each(self, sql: str, parameters: Parameters = ()) -> Iterator[sqlite3.Row]:
        """Yield the rows of a query, one at a time."""
        with self.guarded():
            yield from self._db.execute(sql, parameters)

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run one statement, a transaction of its own outside ``write``; returns rows changed."""
        with self.guarded():
            return self._db.execute(sql, parameters).rowcount

    @contextmanager
    def write(self) -> Iterator[None]:
        """One transaction around several statements."""
        with self.guarded():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back on a full disk
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn errors of SQLite and the file system into ours; a wrong call stays what it is."""
        try:
            yield
        except (sqlite3.DatabaseError, OSError) as error:
            if isinstance(error, sqlite3.Error) and _code(error) in _WRONG_CALLS:
                raise
            raise to_store_error(error, self.path) from error

    def close(self) -> None:
        """Close it."""
        self._db.close()


def _still(path: Path, mode: str) -> bool:
    """Whether a reader must do without the shared memory of WAL, and safely can."""
    wal = path.with_name(f"{path.name}-wal")
    frozen = not os.access(path.parent, os.W_OK, effective_ids=True)
    return mode == "ro" and frozen and not wal.exists()


def _code(error: sqlite3.Error) -> int | None:
    return getattr(error, "sqlite_errorcode", None)  # absent when Python itself found the fault

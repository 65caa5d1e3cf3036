"""The full-text index of a run, a SQLite FTS5 file in the user's cache, not in the run's directory.

The store is only read. The index grows with it: turns are added in the order in which they were
stored, attempts when they are final, a batch at a time, so that whoever searches meanwhile finds
what is there so far. It holds no texts, only where words stand; a hit is read from the store. A
file that is of another run, of another form or damaged is made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from conf.cache import cache_root
from runners.observe.viewer.filters import ViewError
from runners.observe.viewer.search_text import FIELDS, read_rollout_texts, read_turn_texts
from runners.records.store import RunStore

FORM = 2
"""Raised when the tables or the texts that are indexed change."""
BATCH = 200
"""Documents of a transaction."""
BUSY_S = 10
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_COLUMNS = ", ".join(FIELDS)
_TABLES = f"""
CREATE TABLE doc (docid INTEGER PRIMARY KEY, session_id TEXT NOT NULL, turn INTEGER) STRICT;
CREATE TABLE done (attempt INTEGER PRIMARY KEY) STRICT;
CREATE TABLE progress (only INTEGER PRIMARY KEY CHECK (only = 1), run TEXT, turn INTEGER) STRICT;
CREATE VIRTUAL TABLE words USING fts5({_COLUMNS}, content='', tokenize='unicode61');
"""
_NEW_TURNS = (
    "SELECT rowid, session_id, turn_index, request, reply FROM turn WHERE rowid > ? "
    f"ORDER BY rowid LIMIT {BATCH}"
)
_NEW_ATTEMPTS = (
    "SELECT rowid, session_id, task_id, patch, verdict FROM rollout WHERE counts "
    f"AND rowid NOT IN (SELECT attempt FROM search.done) LIMIT {BATCH}"
)


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """Share of the store that is indexed."""

    done: int
    total: int
    """Turns of the store."""


class SearchIndex:
    """The index of one run's store."""

    def __init__(self, run_dir: Path, directory: Path | None = None) -> None:
        """``directory``: where the file lies; default: the cache. Raises ViewError."""
        self.run_dir = run_dir
        folder = directory or cache_root() / "viewer"
        name = hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:24]
        self.path = folder / f"{name}-{FORM}.sqlite"
        with _view_errors(self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def attach(self, store: RunStore) -> None:
        """Let a store's queries read the index, as the schema ``search``; makes it if missing."""
        with _view_errors(self.path):
            self._open(store.run_id).close()
        store.database.execute("ATTACH DATABASE ? AS search", (str(self.path),))

    def update(self, show: Callable[[IndexProgress], object] = lambda _: None) -> IndexProgress:
        """Add what the store has and the index lacks; ``show`` is called after each batch."""
        with _view_errors(self.path), RunStore.open(self.run_dir, read_only=True) as store:
            self.attach(store)
            with closing(self._connect()) as db:
                while _add_turns(store, db) or _add_attempts(store, db):
                    show(self.progress(store))
            return self.progress(store)

    def progress(self, store: RunStore) -> IndexProgress:
        """Return how much is indexed; the store has the index attached."""
        total = store.query("SELECT coalesce(max(rowid), 0) FROM turn")[0][0]
        return IndexProgress(store.query("SELECT turn FROM search.progress")[0][0], total)

    def _open(self, run_id: str) -> sqlite3.Connection:
        """Return a connection to the index of a run; of another one, or damaged: an empty index."""
        with self._lock():
            db = None
            try:
                db = self._connect()
                if db.execute("SELECT run FROM progress").fetchone() == (run_id,):
                    return db
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode in _BUSY:
                    raise  # whole, and in use
            if db is not None:
                db.close()
            for end in ("", "-wal", "-shm"):
                Path(f"{self.path}{end}").unlink(missing_ok=True)
            db = self._connect()
            db.executescript(_TABLES)
            db.execute("INSERT INTO progress VALUES (1, ?, 0)", (run_id,))
            return db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        self.path.chmod(0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # a cache: what a crash spoils is made anew
        return db

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one process at a time make the file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        handle = os.open(self.path.with_suffix(".lock"), flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _add_turns(store: RunStore, db: sqlite3.Connection) -> bool:
    """Add the next turns; returns whether there were any."""
    with _transaction(db):
        after = db.execute("SELECT turn FROM progress").fetchone()[0]
        rows = store.query(_NEW_TURNS, (after,))
        for rowid, session_id, turn, request, reply in rows:
            _add(db, session_id, turn, read_turn_texts(request, reply))
            after = rowid
        db.execute("UPDATE progress SET turn = ?", (after,))
    return bool(rows)


def _add_attempts(store: RunStore, db: sqlite3.Connection) -> bool:
    """Add the next final attempts; returns whether there were any."""
    with _transaction(db):
        rows = store.query(_NEW_ATTEMPTS)
        for rowid, session_id, task, patch, verdict in rows:
            _add(db, session_id, None, read_rollout_texts(session_id, task, patch, verdict))
            db.execute("INSERT INTO done VALUES (?)", (rowid,))
    return bool(rows)


def _add(db: sqlite3.Connection, session_id: str, turn: int | None, texts: dict[str, str]) -> None:
    docid = db.execute("INSERT INTO doc VALUES (NULL, ?, ?)", (session_id, turn)).lastrowid
    marks = ", ".join("?" * (len(FIELDS) + 1))
    db.execute(
        f"INSERT INTO words (rowid, {_COLUMNS}) VALUES ({marks})",
        (docid, *(texts.get(field, "") for field in FIELDS)),
    )


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def _view_errors(path: Path) -> Iterator[None]:
    """Turn a failure to write the index into a ViewError."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as error:
        raise ViewError(
            f"the search index {path} cannot be written ({error}): free some space, or set "
            "XDG_CACHE_HOME to another directory"
        ) from error

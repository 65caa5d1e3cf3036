"""The store's tables, in one place. A change here raises ``SCHEMA_VERSION``."""

from __future__ import annotations

from runners.store.database import Database
from runners.store.store_error import StoreError

APPLICATION_ID = 0x61676E74
"""Marks a SQLite file as a run's store ("agnt")."""
SCHEMA_VERSION = 3

TABLES = """
-- The run: one row. Written by the driver, except config, which never changes.
CREATE TABLE run (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    config TEXT NOT NULL, created_at REAL NOT NULL,
    state TEXT NOT NULL, exit_code INTEGER, message TEXT NOT NULL, info TEXT NOT NULL,
    updated_at REAL NOT NULL,
    host TEXT, pid INTEGER, pid_started_at REAL, heartbeat_at REAL
) STRICT;

-- A gateway session: one attempt's conversation. Written by the gateway.
CREATE TABLE session (
    session_id TEXT PRIMARY KEY, info TEXT NOT NULL, created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- One model call; its arrays lie in arrays/turns.bin. Written by the gateway, never changed.
CREATE TABLE turn (
    session_id TEXT NOT NULL REFERENCES session, turn_index INTEGER NOT NULL,
    thread TEXT NOT NULL, parent_thread TEXT, branch TEXT NOT NULL,
    segment INTEGER NOT NULL, parent INTEGER, prompt_kept INTEGER NOT NULL,
    array_offset INTEGER NOT NULL, prompt_count INTEGER NOT NULL,
    output_count INTEGER NOT NULL, array_crc INTEGER NOT NULL,
    weight_version INTEGER NOT NULL, finish_reason TEXT NOT NULL, break_reason TEXT,
    malformed_calls INTEGER NOT NULL,
    request TEXT NOT NULL, reply TEXT NOT NULL, usage TEXT NOT NULL,
    started_at REAL NOT NULL, engine_s REAL NOT NULL, total_s REAL NOT NULL,
    UNIQUE (session_id, turn_index)
) STRICT;

-- One attempt of a rollout. Written by the driver: before its grading, and again at its end.
CREATE TABLE rollout (
    rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL,
    step INTEGER NOT NULL, split TEXT NOT NULL,
    group_index INTEGER NOT NULL, member INTEGER NOT NULL,
    task_id TEXT NOT NULL, session_id TEXT NOT NULL, counts INTEGER NOT NULL,
    code TEXT NOT NULL, stage TEXT NOT NULL, message TEXT NOT NULL, raw_finish_reason TEXT,
    reward REAL, solved INTEGER, advantage REAL,
    turns INTEGER NOT NULL,
    sampled_tokens INTEGER NOT NULL, trained_tokens INTEGER NOT NULL,
    final_message TEXT NOT NULL, patch TEXT NOT NULL,
    verdict TEXT NOT NULL, timings TEXT NOT NULL, extra TEXT NOT NULL,
    UNIQUE (rollout_id, attempt)
) STRICT;
CREATE UNIQUE INDEX rollout_counts ON rollout (rollout_id) WHERE counts;
CREATE INDEX rollout_order ON rollout (step, split, group_index, member, attempt);

-- A training step; finished_at is set exactly once. Written by the driver.
CREATE TABLE step (
    step INTEGER PRIMARY KEY, tasks TEXT NOT NULL, metrics TEXT,
    started_at REAL NOT NULL, finished_at REAL
) STRICT;

-- A finished evaluation of the weights after so many steps. Written by the driver, never changed.
CREATE TABLE evaluation (
    step INTEGER PRIMARY KEY, result TEXT NOT NULL, finished_at REAL NOT NULL
) STRICT;

-- Notable things: a breaker that opened, a service that ended, a retry, a resume.
CREATE TABLE event (
    event_id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
"""

LEDGER = """
-- What exists outside the store, and which driver made it. Written by the driver.
CREATE TABLE ledger (
    kind TEXT NOT NULL, name TEXT NOT NULL, facts TEXT NOT NULL,
    host TEXT NOT NULL, pid INTEGER NOT NULL, pid_started_at REAL NOT NULL,
    entered_at REAL NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
"""

ROUTING = """
-- The routing of a turn, if its engine returned any; its array lies in arrays/routing.bin. Written
-- by the gateway with the turn, never changed.
CREATE TABLE routing (
    session_id TEXT NOT NULL, turn_index INTEGER NOT NULL,
    start INTEGER NOT NULL, row_count INTEGER NOT NULL, layers INTEGER NOT NULL,
    top_k INTEGER NOT NULL, choices INTEGER NOT NULL,
    array_offset INTEGER NOT NULL, array_crc INTEGER NOT NULL, tokens_crc INTEGER NOT NULL,
    PRIMARY KEY (session_id, turn_index),
    FOREIGN KEY (session_id, turn_index) REFERENCES turn (session_id, turn_index)
) STRICT, WITHOUT ROWID;
"""

MIGRATIONS = {1: LEDGER, 2: ROUTING}
"""What a store of that version lacks of the next one."""


def create_tables(db: Database) -> None:
    """Make the tables of a new store; the caller holds the transaction."""
    for statements in (TABLES, *MIGRATIONS.values()):
        _run(db, statements)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def check_tables(db: Database) -> None:
    """Refuse a file that is not a run's store, or one that a newer agentrl wrote.

    An older one is fine to read; ``migrate`` makes it fit to write.
    """
    application = db.rows("PRAGMA application_id")[0][0]
    version = _version(db)
    if application != APPLICATION_ID:
        raise StoreError(
            f"{db.path} is not the store of a run: name a directory that `agentrl run` made"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{db.path} has store version {version}, this agentrl reads up to {SCHEMA_VERSION}: "
            "use the agentrl that wrote it, or a newer one"
        )


def migrate(db: Database) -> None:
    """Bring an older store to this version; what it holds stays as it is."""
    if _version(db) == SCHEMA_VERSION:
        return
    with db.write():
        for old in range(_version(db), SCHEMA_VERSION):  # another process may have been here
            _run(db, MIGRATIONS[old])
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(db: Database) -> int:
    version: int = db.rows("PRAGMA user_version")[0][0]
    return version


def _run(db: Database, statements: str) -> None:
    for statement in statements.split(";\n"):
        if statement.strip():
            db.execute(statement)

"""Creates the store's tables, and brings those of older runs up to date.

The tables of records follow from the records' classes (``record_rows.py``); a field that is added
there becomes a column of older runs too, with its default. Any other change raises
``SCHEMA_VERSION`` and needs an entry in ``MIGRATIONS``.
"""

from __future__ import annotations

from runners.records.store.database import Database
from runners.records.store.record_rows import ROLLOUTS, ROUTING, TURNS
from runners.records.store.store_error import StoreError

APPLICATION_ID = 0x61676E74
"""Marks a SQLite file as a run's store ("agnt")."""
SCHEMA_VERSION = 6
ROUTING_SINCE = 3
"""First version that has the table ``routing``."""
WIRE_SINCE = 5
"""Likewise ``wire``."""
AGREEMENT_SINCE = 6
"""Likewise ``agreement``."""

ROLLOUT_ENDS = (
    "CREATE INDEX IF NOT EXISTS rollout_ends ON rollout "
    "(split, step, counts, code, task_id, solved, sampled_tokens)"
)
"""All that is counted over a run: its rows are 60 bytes long, those of the table have kilobytes of
patch and log beside it. An older store gets it when it is opened to be written.
"""

TABLES = f"""
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

-- One model call; its arrays lie in arrays/turns*.bin. Written by the gateway, never changed.
{TURNS.create}
-- One attempt of a rollout. Written by the driver: before its grading, and again at its end.
{ROLLOUTS.create}
CREATE UNIQUE INDEX rollout_counts ON rollout (rollout_id) WHERE counts;
CREATE INDEX rollout_order ON rollout (step, split, group_index, member, attempt);
{ROLLOUT_ENDS};

-- A training step; finished_at is set exactly once. Written by the driver.
CREATE TABLE step (
    step INTEGER PRIMARY KEY, tasks TEXT NOT NULL, metrics TEXT,
    started_at REAL NOT NULL, finished_at REAL
) STRICT;

-- A finished evaluation of the weights after so many steps. Written by the driver, never changed.
CREATE TABLE evaluation (
    step INTEGER PRIMARY KEY, result TEXT NOT NULL, finished_at REAL NOT NULL
) STRICT;

-- Notable events: a breaker that opened, a service that ended, a retry, a resume.
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

ROUTING_DDL = f"""
-- The routing of a turn, if its engine returned any; its array lies in arrays/routing*.bin. Written
-- by the gateway with the turn; the driver deletes it with its file (routing_replay.keep_steps).
{ROUTING.create}"""

SCHEDULE = """
-- What an asynchronous campaign decided, in order: the groups that it admitted, started and trained
-- together, and the updates between. Written by the driver, never changed.
CREATE TABLE schedule (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL
) STRICT;
"""

WIRE = """
-- Request and answer of a turn as they were on the wire, with gateway.record_wire; both are zlib's.
-- Written by the gateway with the turn, never changed.
CREATE TABLE wire (
    session_id TEXT NOT NULL, turn_index INTEGER NOT NULL, path TEXT NOT NULL,
    headers TEXT NOT NULL, request BLOB NOT NULL, request_bytes INTEGER NOT NULL,
    answer BLOB NOT NULL, answer_bytes INTEGER NOT NULL,
    PRIMARY KEY (session_id, turn_index)
) STRICT;
"""

AGREEMENT = """
-- How far training's own router agreed with the replayed experts of a chain, token by token: uint8,
-- zlib's. Written by the driver after the step's training.
CREATE TABLE agreement (
    session_id TEXT NOT NULL, tokens_crc INTEGER NOT NULL, percent BLOB NOT NULL,
    PRIMARY KEY (session_id, tokens_crc)
) STRICT;
"""

MIGRATIONS = {1: LEDGER, 2: ROUTING_DDL, 3: SCHEDULE, 4: WIRE, 5: AGREEMENT}
"""Statements that bring a store of that version to the next one."""


def create_tables(db: Database) -> None:
    """Create the tables of a new store; the caller holds the transaction."""
    for statements in (TABLES, *MIGRATIONS.values()):
        _run(db, statements)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def check_tables(db: Database) -> None:
    """Raise StoreError for a file that is not a run's store, or that a newer agentrl wrote.

    An older store can be read as it is; before it is written, ``migrate`` brings it up to date.
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
    """Bring an older store up to date; what it holds stays as it is."""
    if _version(db) == SCHEMA_VERSION and not _missing(db):
        return
    with db.write():
        # read again inside the transaction: the gateway and the driver open a store at once
        for old in range(_version(db), SCHEMA_VERSION):
            _run(db, MIGRATIONS[old])
        for statement in _missing(db):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _missing(db: Database) -> list[str]:
    """Return the statements that add the columns and the index that an older store lacks."""
    statements: list[str] = []
    for table in (TURNS, ROUTING, ROLLOUTS):
        present = {row["name"] for row in db.rows(f"PRAGMA table_info({table.name})")}
        if present:  # a table that a migration is yet to create lacks nothing
            statements += table.add_missing(present)
    has_index = db.rows("SELECT 1 FROM sqlite_schema WHERE name = 'rollout_ends'")
    return statements if has_index else [*statements, ROLLOUT_ENDS]  # of columns that then exist


def _version(db: Database) -> int:
    version: int = db.rows("PRAGMA user_version")[0][0]
    return version


def _run(db: Database, statements: str) -> None:
    for statement in statements.split(";\n"):
        if statement.strip():
            db.execute(statement)

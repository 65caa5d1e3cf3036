"""The store of a run, ``store.sqlite`` and its array files: everything that happens, as it happens.

Several processes write at the same time: gateways write sessions and turns, each with array files
of its own, the driver everything else. Each method is one transaction; what it wrote survives the
death of the process at any later instant. A store belongs to the thread that opened it. Every
failure of disk or database is a ``StoreError``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from conf.errors import ExitCode
from runners.records.store.arrays import TurnArrays
from runners.records.store.campaign_tables import CampaignTables
from runners.records.store.database import Database
from runners.records.store.run_state import (
    TRANSITIONS,
    RunState,
    State,
    current_process,
    state_from_row,
)
from runners.records.store.session_tables import SessionTables
from runners.records.store.status_file import find_remote_driver
from runners.records.store.store_error import StoreError, to_store_error
from runners.records.store.tables import check_tables, create_tables, migrate
from runners.records.text import clean_text, dumps, loads

STORE_FILE = "store.sqlite"


@dataclass(frozen=True, slots=True)
class EventRow:
    """A notable event: a retry, a service that ended, a breaker that opened."""

    at: float
    kind: str
    data: dict[str, Any]


class RunStore(SessionTables, CampaignTables):
    """The store of one run: made by ``create`` or ``open``, a context manager.

    Its own methods are those of the run itself: its configuration, state and events.
    """

    def __init__(self, run_dir: Path, db: Database) -> None:
        self.run_dir = run_dir
        self._db = db
        self._arrays = TurnArrays(run_dir / "arrays")

    @classmethod
    def create(cls, run_dir: Path, config: dict[str, Any]) -> Self:
        """Begin a run in ``run_dir`` (made if missing); refuses one that already holds a run."""
        try:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise to_store_error(error, run_dir) from error
        store, now = cls(run_dir, Database(run_dir / STORE_FILE, "rwc")), time.time()
        with store._closed_on_error(), store._db.write():
            if store._db.rows("SELECT 1 FROM sqlite_schema"):
                raise StoreError(
                    f"{run_dir} already holds a run: choose another run.dir, or continue a "
                    f"campaign or an evaluation with --resume {run_dir}",
                    ExitCode.USAGE,
                )
            create_tables(store._db)
            store._db.execute(
                "INSERT INTO run (only, config, created_at, state, message, info, updated_at) "
                "VALUES (1, ?, ?, ?, '', '{}', ?)",
                (dumps(config), now, State.CREATED, now),
            )
        return store

    @classmethod
    def open(cls, run_dir: Path, *, read_only: bool = False) -> Self:
        """Open the run in ``run_dir``; refuses a directory without one, a newer store, and one that
        another machine has open.
        """
        path = run_dir / STORE_FILE
        if not path.is_file():
            raise StoreError(
                f"{run_dir} holds no run (there is no {STORE_FILE} in it): "
                "name a directory that `agentrl run` made"
            )
        if (host := find_remote_driver(run_dir)) is not None:
            raise StoreError(
                f"the run in {run_dir} is driven on {host}, and its store can be read there only "
                f"until it ends: `agentrl status {run_dir}` shows its status",
                ExitCode.USAGE,
            )
        store = cls(run_dir, Database(path, "ro" if read_only else "rw"))
        with store._closed_on_error():
            check_tables(store._db)
            if not read_only:
                migrate(store._db)
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and the array files."""
        self._arrays.close()
        self._db.close()

    @property
    def run_id(self) -> str:
        """The run's id, by which its checkpoints know it: the time of its creation."""
        created: float = self._db.rows("SELECT created_at FROM run")[0][0]
        return f"{created:.6f}"

    def verify_arrays(self, ahead: int = 0) -> None:
        """Raise StoreError if the array files lack what the store's rows refer to, or are another
        run's.

        Read are the first and the last turns of each file, and the turns of final rollouts whose
        step is not finished, since those are trained when the run continues; ``ahead``: steps after
        its own in which a rollout may be trained at the latest.
        """
        sessions = {
            row[0]
            for row in self._db.rows(
                "SELECT session_id FROM rollout WHERE counts AND split = 'train' AND NOT EXISTS "
                "(SELECT 1 FROM step WHERE step.step >= rollout.step + ? "
                "AND finished_at IS NOT NULL)",
                (ahead,),
            )
        }
        for table in ("turn", "routing") if self._holds_routing() else ("turn",):
            columns = {row["name"] for row in self._db.rows(f"PRAGMA table_info({table})")}
            # a run from before there were several files, opened to be read, has no such column
            files = ", ".join(sorted(columns & {"array_file", "array_part"})) or "NULL"
            for end in ("min", "max"):
                # SQLite takes the other columns from the row that has the minimum or the maximum
                rows = self._db.rows(
                    f"SELECT session_id, {end}(array_offset) FROM {table} GROUP BY {files}"
                )
                sessions.update(row[0] for row in rows)
        for session_id in sessions:
            self.turns(session_id)
            self.routing(session_id)

    def config(self) -> dict[str, Any]:
        """Return the run's resolved configuration."""
        config: dict[str, Any] = loads(self._db.rows("SELECT config FROM run")[0][0])
        return config

    def replace_config(self, config: dict[str, Any]) -> None:
        """Store the configuration that a resume has changed."""
        self._db.execute("UPDATE run SET config = ?", (dumps(config),))

    def set_state(
        self, state: State | str, *, exit_code: int | None = None, message: str = "", **info: Any
    ) -> None:
        """Move the run to another state.

        ``running`` makes this process its driver; raises StoreError while another living process
        drives it.
        """
        new, me = State(state), current_process()
        with self._db.write():
            old = self.state()
            if new not in TRANSITIONS[old.state]:
                raise StoreError(
                    f"the run in {self.run_dir} is {old.state} and cannot become {new}"
                )
            if new is State.RUNNING and old.driven and old.driver and old.driver.pid != me.pid:
                raise StoreError(
                    f"the run in {self.run_dir} is driven by process {old.driver.pid} "
                    f"on {old.driver.host}: wait for it, or interrupt it first",
                    ExitCode.USAGE,
                )
            now = time.time()
            self._db.execute(
                "UPDATE run SET state = ?, exit_code = ?, message = ?, info = ?, updated_at = ?",
                (new, exit_code, clean_text(message), dumps(info), now),
            )
            if new is State.RUNNING:
                self._db.execute(
                    "UPDATE run SET host = ?, pid = ?, pid_started_at = ?, heartbeat_at = ?",
                    (me.host, me.pid, me.started_at, now),
                )

    def heartbeat(self) -> None:
        """Record that the driver is alive."""
        self._db.execute("UPDATE run SET heartbeat_at = ?", (time.time(),))

    def state(self) -> RunState:
        """Return the run's state."""
        return state_from_row(self._db.rows("SELECT * FROM run")[0], self.run_dir / STORE_FILE)

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Add an event."""
        self._db.execute(
            "INSERT INTO event (at, kind, data) VALUES (?, ?, ?)", (time.time(), kind, dumps(data))
        )

    def events(self, kind: str | None = None) -> list[EventRow]:
        """Return the events, of one kind or all, in order."""
        rows = self._db.rows(
            "SELECT at, kind, data FROM event WHERE kind = coalesce(?, kind) ORDER BY event_id",
            (kind,),
        )
        return [EventRow(at, kind, loads(data)) for at, kind, data in rows]

    def query(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        """Return the rows of a SELECT, for counts that no method above gives."""
        return self._db.rows(sql, parameters)

    @property
    def database(self) -> Database:
        """The connection, for the ledger of external resources, which keeps its own table."""
        return self._db

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

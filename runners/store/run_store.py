"""The store of a run, ``store.sqlite`` and two array files: everything that happens, as it happens.

Two processes write at the same time: the gateway writes sessions and turns, the driver everything
else. Each method is one transaction; what it wrote survives the death of the process at any later
instant. A store belongs to the thread that opened it. Every failure of disk or database is a
``StoreError``.
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
from runners.store.arrays import TurnArrays
from runners.store.database import Database
from runners.store.json_text import clean_text, dumps, loads
from runners.store.record_rows import (
    ROLLOUTS,
    ROUTING,
    TURNS,
    read_rollout,
    read_routing,
    read_turn,
    routing_block,
)
from runners.store.run_state import TRANSITIONS, RunState, State, current_process, state_from_row
from runners.store.status_file import find_remote_driver
from runners.store.store_error import StoreError, to_store_error
from runners.store.tables import ROUTING_SINCE, check_tables, create_tables, migrate
from runners.trajectory.counters import rename_counters
from runners.trajectory.ids import parse_session_id
from runners.trajectory.record import RolloutRecord, Turn
from runners.trajectory.routing import RoutingShape, TurnRouting
from runners.trajectory.turn_totals import TurnTotals

STORE_FILE = "store.sqlite"
SAMPLED_TOKENS = "coalesce(nullif(output_count, 0), json_extract(usage, '$.completion_tokens'), 0)"
"""The sampled tokens of a row of ``turn``: its ids, or without ids those that were counted."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A training step."""

    step: int
    state: str
    """"running" until finished, then "done"."""
    tasks: list[str]
    metrics: dict[str, Any]
    """Empty until finished."""
    started_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """A finished evaluation."""

    step: int
    result: dict[str, Any]
    finished_at: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """A notable event: a retry, a service that ended, a breaker that opened."""

    at: float
    kind: str
    data: dict[str, Any]


class RunStore:
    """The store of one run: made by ``create`` or ``open``, a context manager."""

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
                    f"{run_dir} already holds a run: continue it with --resume {run_dir}, or "
                    "choose another run.dir",
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

    def verify_arrays(self) -> None:
        """Raise StoreError if the array files lack what the store's rows refer to, or are another
        run's.

        Read are the first and the last turns of each file, and the turns of final rollouts whose
        step is not finished, since those are trained when the run continues.
        """
        sessions = {
            row[0]
            for row in self._db.rows(
                "SELECT session_id FROM rollout WHERE counts AND split = 'train' AND NOT EXISTS "
                "(SELECT 1 FROM step WHERE step.step = rollout.step AND finished_at IS NOT NULL)"
            )
        }
        for table in ("turn", "routing") if self._holds_routing() else ("turn",):
            for order in ("ASC", "DESC"):
                sessions.update(
                    row[0]
                    for row in self._db.rows(
                        f"SELECT session_id FROM {table} ORDER BY array_offset {order} LIMIT 1"
                    )
                )
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

    # Sessions and turns: the gateway writes.

    def claim_arrays(self, wait_s: float = 0.0) -> None:
        """Take the lock of the only process that adds turns; raises StoreError after ``wait_s``.

        The first turn would take it anyway; a gateway takes it before it serves.
        """
        with self._db.translate_errors():
            self._arrays.claim(wait_s)

    def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """Add a session; raises StoreError if there is one of that id."""
        self._db.execute(
            "INSERT INTO session VALUES (?, ?, ?)", (session_id, dumps(info), time.time())
        )

    def sessions(self) -> dict[str, dict[str, Any]]:
        """Return every session's info."""
        return {
            row[0]: loads(row[1]) for row in self._db.rows("SELECT session_id, info FROM session")
        }

    def add_turn(self, turn: Turn, routing: TurnRouting | None = None) -> None:
        """Store a turn durably: first its arrays, then the rows that refer to them."""
        with self._db.translate_errors():
            block = self._arrays.append(turn.prompt_new, turn.output_ids, turn.output_logprobs)
            if routing is None:
                self._db.execute(TURNS.insert, TURNS.encode(turn, block))
                return
            written = self._arrays.append_routing(routing.experts)
            with self._db.write():
                self._db.execute(TURNS.insert, TURNS.encode(turn, block))
                place = routing_block(turn, routing, *written)
                self._db.execute(ROUTING.insert, ROUTING.encode(place))

    def routing(self, session_id: str) -> dict[int, TurnRouting]:
        """Return the routing of a session's turns by turn index; turns without any are left out."""
        if not self._holds_routing():
            return {}
        rows = self._db.rows(
            "SELECT routing.*, turn.weight_version FROM routing "
            "JOIN turn USING (session_id, turn_index) WHERE session_id = ?",
            (session_id,),
        )
        with self._db.translate_errors():
            return {row["turn_index"]: read_routing(row, self._arrays) for row in rows}

    def routed_turns(self, session_id: str) -> frozenset[int]:
        """Return which of a session's turns have routing."""
        if not self._holds_routing():
            return frozenset()
        rows = self._db.rows("SELECT turn_index FROM routing WHERE session_id = ?", (session_id,))
        return frozenset(row[0] for row in rows)

    def routing_shape(self) -> RoutingShape | None:
        """Return the shape of the turns' routing; None if no turn has any.

        Every layer is taken for one that routes: the store does not know which are dense.
        """
        if not self._holds_routing():
            return None
        for layers, top_k, choices in self._db.rows(
            "SELECT layers, top_k, choices FROM routing LIMIT 1"
        ):
            return RoutingShape(layers, top_k, choices, routed=tuple(range(layers)))
        return None

    def _holds_routing(self) -> bool:
        version: int = self._db.rows("PRAGMA user_version")[0][0]
        return version >= ROUTING_SINCE

    def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns, in order."""
        rows = self._db.rows(
            "SELECT * FROM turn WHERE session_id = ? ORDER BY turn_index", (session_id,)
        )
        with self._db.translate_errors():
            return [read_turn(row, self._arrays) for row in rows]

    # Rollouts: the driver writes.

    def put_rollout(self, record: RolloutRecord) -> None:
        """Add or overwrite an attempt.

        It is written with ``counts=False`` before it is graded, and with its real value at its end.
        An attempt that counts is therefore finished, and a resumed step can use it as it is. An
        earlier attempt of the rollout that counted no longer does.
        """
        with self._db.write():
            if record.counts:
                self._db.execute(
                    "UPDATE rollout SET counts = 0 WHERE rollout_id = ? AND attempt <> ? "
                    "AND counts",
                    (record.rollout_id, record.attempt),
                )
            self._db.execute(ROLLOUTS.upsert, ROLLOUTS.encode(record))

    def rollouts(
        self, *, step: int | None = None, split: str | None = None, counts: bool | None = None
    ) -> list[RolloutRecord]:
        """Return the attempts that match, by step, split, group, member, attempt."""
        return list(self.each_rollout(step=step, split=split, counts=counts))

    def each_rollout(
        self, *, step: int | None = None, split: str | None = None, counts: bool | None = None
    ) -> Iterator[RolloutRecord]:
        """Yield the attempts that ``rollouts`` returns, one at a time."""
        wanted = {"step": step, "split": split, "counts": counts}
        given = {key: value for key, value in wanted.items() if value is not None}
        where = " AND ".join(f"{key} = :{key}" for key in given) or "TRUE"
        order = "step, split, group_index, member, attempt"
        for row in self._db.iterate(f"SELECT * FROM rollout WHERE {where} ORDER BY {order}", given):
            yield read_rollout(row)

    def rollout(self, rollout_id: str) -> RolloutRecord | None:
        """Return the attempt that counts, if one does yet."""
        rows = self._db.rows("SELECT * FROM rollout WHERE rollout_id = ? AND counts", (rollout_id,))
        return read_rollout(rows[0]) if rows else None

    def turn_totals(self, session_id: str) -> TurnTotals:
        """Return the sums over a session's turns; reads no tokens."""
        rows = self._db.rows(
            f"SELECT {SAMPLED_TOKENS}, malformed_calls FROM turn WHERE session_id = ? "
            "ORDER BY turn_index",
            (session_id,),
        )
        return TurnTotals.add_up((sampled, malformed) for sampled, malformed in rows)

    def next_attempt(self, rollout_id: str) -> int:
        """Return an attempt number that is unused, even by a driver that died before recording."""
        rows = self._db.rows(
            "SELECT session_id FROM session WHERE session_id GLOB ? "
            "UNION SELECT session_id FROM rollout WHERE rollout_id = ?",
            (f"{rollout_id}-a*", rollout_id),
        )
        used = [found[1] for (name,) in rows if (found := parse_session_id(name)) is not None]
        return max(used, default=-1) + 1

    def discard_unfinished(self, step: int, split: str | None = None) -> int:
        """Make rollouts of an unfinished step or evaluation count no longer; return how many did.

        Their turns are kept. Finished steps and evaluations stay as they are.
        """
        return self._db.execute(
            """
            UPDATE rollout SET counts = 0
            WHERE counts AND step = :step AND split = coalesce(:split, split) AND NOT EXISTS (
                SELECT 1 FROM step
                WHERE rollout.split = 'train' AND step = :step AND finished_at IS NOT NULL
                UNION ALL SELECT 1 FROM evaluation
                WHERE rollout.split = 'eval' AND step = :step
            )
            """,
            {"step": step, "split": split},
        )

    # Steps and evaluations: the driver writes.

    def begin_step(self, step: int, tasks: list[str]) -> None:
        """Begin a step, or begin an unfinished one anew; raises StoreError for a finished one."""
        began = self._db.execute(
            "INSERT INTO step (step, tasks, started_at) VALUES (?, ?, ?) "
            "ON CONFLICT (step) DO UPDATE SET tasks = excluded.tasks WHERE finished_at IS NULL",
            (step, dumps(tasks), time.time()),
        )
        if not began:
            raise StoreError(f"step {step} of {self.run_dir} is finished and cannot begin anew")

    def finish_step(self, step: int, metrics: dict[str, Any]) -> None:
        """Finish a step; raises StoreError if it never began or is finished."""
        finished = self._db.execute(
            "UPDATE step SET metrics = ?, finished_at = ? WHERE step = ? AND finished_at IS NULL",
            (dumps(metrics), time.time(), step),
        )
        if not finished:
            raise StoreError(
                f"step {step} of {self.run_dir} cannot finish: it never began, or is finished"
            )

    def rewind(self, step: int) -> None:
        """Drop the steps after ``step`` and their evaluations: the trainer lost them and repeats
        them. Rollouts of the step that follows still count, later ones no longer do.
        """
        with self._db.write():
            self._db.execute("DELETE FROM step WHERE step > ?", (step,))
            self._db.execute("DELETE FROM evaluation WHERE step > ?", (step,))
            self._db.execute(
                "UPDATE rollout SET counts = 0 WHERE counts AND step > ?"
                " AND NOT (split = 'train' AND step = ?)",
                (step, step + 1),
            )

    def steps(self) -> list[StepRow]:
        """Return every step that began, in order."""
        rows = self._db.rows(
            "SELECT step, tasks, metrics, started_at, finished_at FROM step ORDER BY step"
        )
        return [
            StepRow(
                step,
                "running" if end is None else "done",
                loads(tasks),
                rename_counters(loads(metrics or "{}"), "rollout/"),
                start,
                end,
            )
            for step, tasks, metrics, start, end in rows
        ]

    def finish_evaluation(self, step: int, result: dict[str, Any]) -> None:
        """Store the evaluation of the weights after ``step`` steps; raises StoreError if there is
        one.
        """
        self._db.execute(
            "INSERT INTO evaluation VALUES (?, ?, ?)", (step, dumps(result), time.time())
        )

    def evaluations(self) -> list[EvaluationRow]:
        """Return every finished evaluation, in order."""
        rows = self._db.rows("SELECT step, result, finished_at FROM evaluation ORDER BY step")
        return [EvaluationRow(step, loads(result), at) for step, result, at in rows]

    # State and events.

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
        return state_from_row(self._db.rows("SELECT * FROM run")[0])

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

    # Access.

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

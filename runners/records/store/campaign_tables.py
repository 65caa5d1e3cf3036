"""Rollouts, steps, evaluations, schedule: what the driver writes while a campaign goes on."""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.records.ids import parse_session_id
from runners.records.record import RolloutRecord
from runners.records.routing import TokenAgreement
from runners.records.session_summary import rename_counters
from runners.records.store.database import Database
from runners.records.store.record_rows import ROLLOUTS, read_rollout
from runners.records.store.store_error import StoreError
from runners.records.store.tables import AGREEMENT_SINCE
from runners.records.text import dumps, loads


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


class CampaignTables:
    """The part of a ``RunStore`` in which a campaign's progress is recorded."""

    run_dir: Path
    _db: Database

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

    def attempts(self, rollout_id: str) -> list[RolloutRecord]:
        """Return every recorded attempt of a rollout, in order; none if it is not known."""
        rows = self._db.rows(
            "SELECT * FROM rollout WHERE rollout_id = ? ORDER BY attempt", (rollout_id,)
        )
        return [read_rollout(row) for row in rows]

    def task_counts(
        self, before: int | None = None, *, split: str = "train"
    ) -> list[tuple[str, int, int, int]]:
        """Return ``task_id, step, graded, solved`` for each task of each training step, in that
        order; of the steps before ``before``. Spare groups and flat ones are among them.
        ``split="eval"``: of each evaluation, by the steps before it.
        """
        rows = self._db.rows(
            "SELECT task_id, step, count(solved), coalesce(sum(solved), 0) FROM rollout "
            "WHERE counts AND split = ?2 AND (?1 IS NULL OR step < ?1) "
            "GROUP BY task_id, step ORDER BY task_id, step",
            (before, split),
        )
        return [(task, step, graded, solved) for task, step, graded, solved in rows]

    def next_attempt(self, rollout_id: str) -> int:
        """Return an attempt number that is unused, even by a driver that died before recording."""
        rows = self._db.rows(
            "SELECT session_id FROM session WHERE session_id GLOB ? "
            "UNION SELECT session_id FROM rollout WHERE rollout_id = ?",
            (f"{rollout_id}-a*", rollout_id),
        )
        used = [found[1] for (name,) in rows if (found := parse_session_id(name)) is not None]
        return max(used, default=-1) + 1

    def begin_step(self, step: int, tasks: list[str]) -> None:
        """Begin a step, or begin an unfinished one anew; raises StoreError for a finished one."""
        began = self._db.execute(
            "INSERT INTO step (step, tasks, started_at) VALUES (?, ?, ?) "
            "ON CONFLICT (step) DO UPDATE SET tasks = excluded.tasks WHERE finished_at IS NULL",
            (step, dumps(tasks), time.time()),
        )
        if not began:
            raise StoreError(f"step {step} of {self.run_dir} is finished and cannot begin anew")

    def log_schedule(self, kind: str, body: Mapping[str, Any]) -> None:
        """Append an event to the schedule of an asynchronous campaign."""
        self._db.execute("INSERT INTO schedule (kind, body) VALUES (?, ?)", (kind, dumps(body)))

    def log_batch(self, step: int, tasks: list[str], kind: str, body: Mapping[str, Any]) -> None:
        """Begin a step, and append the event of its batch, in one transaction."""
        with self._db.write():
            self.begin_step(step, tasks)
            self.log_schedule(kind, body)

    def has_schedule(self) -> bool:
        """Return whether the schedule has an event; an older store has no table of them."""
        known = self._db.rows("SELECT 1 FROM sqlite_schema WHERE name = 'schedule'")
        return bool(known and self._db.rows("SELECT 1 FROM schedule LIMIT 1"))

    def schedule(self, kinds: Collection[str] | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Return the events of the schedule, ``(kind, body)``, in order; of some kinds or all."""
        if not self.has_schedule():
            return []
        wanted = None if kinds is None else dumps(list(kinds))
        rows = self._db.rows(
            "SELECT kind, body FROM schedule WHERE ?1 IS NULL "
            "OR kind IN (SELECT value FROM json_each(?1)) ORDER BY seq",
            (wanted,),
        )
        return [(kind, loads(body)) for kind, body in rows]

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

    def put_agreements(self, found: Iterable[tuple[str, TokenAgreement]]) -> None:
        """Store how far training's router agrees with chains of sessions, ``(session, agreement)``;
        those of a step that is trained again replace the former ones.
        """
        with self._db.write():
            for session_id, each in found:
                self._db.execute(
                    "INSERT OR REPLACE INTO agreement VALUES (?, ?, ?)",
                    (session_id, each.tokens_crc, zlib.compress(each.percent.tobytes(), 3)),
                )

    def agreements(self, session_id: str) -> list[tuple[int, NDArray[np.uint8]]]:
        """Return checksum of the tokens and ``TokenAgreement.percent`` of a session's chains."""
        if self._db.rows("PRAGMA user_version")[0][0] < AGREEMENT_SINCE:
            return []
        rows = self._db.rows(
            "SELECT tokens_crc, percent FROM agreement WHERE session_id = ?", (session_id,)
        )
        return [(crc, np.frombuffer(zlib.decompress(data), np.uint8)) for crc, data in rows]

    def add_metrics(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Add figures that came after a step was finished; returns False if it is not."""
        with self._db.write():
            rows = self._db.rows(
                "SELECT metrics FROM step WHERE step = ? AND finished_at IS NOT NULL", (step,)
            )
            for (known,) in rows:
                whole = loads(known or "{}") | dict(metrics)
                self._db.execute("UPDATE step SET metrics = ? WHERE step = ?", (dumps(whole), step))
        return bool(rows)

    def rewind(self, step: int, lost: Iterable[str] | None = None) -> None:
        """Drop the steps after ``step`` and their evaluations: the trainer lost them and repeats
        them. ``lost``: sessions of training rollouts that no longer count; None: those after the
        step that follows.
        """
        with self._db.write():
            self._db.execute("DELETE FROM step WHERE step > ?", (step,))
            self._db.execute("DELETE FROM evaluation WHERE step > ?", (step,))
            self._db.execute(
                "UPDATE rollout SET counts = 0 WHERE counts AND step > ? AND split = 'eval'",
                (step,),
            )
            if lost is None:
                self._db.execute(
                    "UPDATE rollout SET counts = 0 WHERE counts AND step > ?", (step + 1,)
                )
            else:  # at once: sessions have no index, so each would read all rollouts
                self._db.execute(
                    "UPDATE rollout SET counts = 0 "
                    "WHERE session_id IN (SELECT value FROM json_each(?))",
                    (dumps(list(lost)),),
                )

    def rewind_schedule(self, batch: int) -> None:
        """Drop the events after the batch of this number, 0: all events; raises StoreError if the
        schedule has no such batch.
        """
        with self._db.write():
            rows = self._db.rows("SELECT seq, body FROM schedule WHERE kind = 'batch'")
            ends = {loads(body)["number"]: seq for seq, body in rows} | {0: 0}
            if batch not in ends:
                raise StoreError(
                    f"the schedule of {self.run_dir} has no batch {batch}: restore the run "
                    "directory as a whole"
                )
            self._db.execute("DELETE FROM schedule WHERE seq > ?", (ends[batch],))

    def drop_ready(self, groups: Collection[int]) -> None:
        """Drop from the schedule that these groups are complete: rollouts of theirs are lost."""
        self._db.execute(
            "DELETE FROM schedule WHERE kind = 'ready' "
            "AND json_extract(body, '$.group') IN (SELECT value FROM json_each(?))",
            (dumps(sorted(groups)),),
        )

    def version_ranges(self) -> dict[str, tuple[int, int]]:
        """Return the oldest and the newest weights that sampled each session, by its id."""
        oldest = "min(coalesce(json_extract(weight_spans, '$[0][0]'), weight_version))"
        rows = self._db.rows(
            f"SELECT session_id, {oldest}, max(weight_version) FROM turn GROUP BY session_id"
        )
        return {session: (low, high) for session, low, high in rows}

    def steps(self, first: int = 0) -> list[StepRow]:
        """Return every step that began, in order, from ``first`` on."""
        rows = self._db.rows(
            "SELECT step, tasks, metrics, started_at, finished_at FROM step WHERE step >= ? "
            "ORDER BY step",
            (first,),
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

    def finished_steps(self) -> set[int]:
        """Return the numbers of the steps that are finished."""
        rows = self._db.rows("SELECT step FROM step WHERE finished_at IS NOT NULL")
        return {step for (step,) in rows}

    def metric_rows(self, first: int = 0) -> list[dict[str, Any]]:
        """Return the metrics of each finished step from ``first`` on, ``step`` among them, and
        those of the last evaluation that was made during it: ``eval/…``.

        The evaluation before the first step belongs to step 1; ``eval/step`` says how many updates
        the evaluated policy had.
        """
        rows = {
            row.step: {"step": row.step, **row.metrics}
            for row in self.steps(first)
            if row.state == "done"
        }
        for evaluation in self.evaluations(first if first > 1 else 0):
            row = rows.get(max(1, evaluation.step))
            if row is not None:
                row.update(
                    {f"eval/{key}": value for key, value in evaluation.result.items()},
                    **{"eval/step": evaluation.step},
                )
        return list(rows.values())

    def finish_evaluation(self, step: int, result: dict[str, Any]) -> None:
        """Store the evaluation of the weights after ``step`` steps; raises StoreError if there is
        one.
        """
        self._db.execute(
            "INSERT INTO evaluation VALUES (?, ?, ?)", (step, dumps(result), time.time())
        )

    def evaluations(self, first: int = 0) -> list[EvaluationRow]:
        """Return every finished evaluation, in order, from the one after ``first`` steps on."""
        rows = self._db.rows(
            "SELECT step, result, finished_at FROM evaluation WHERE step >= ? ORDER BY step",
            (first,),
        )
        return [EvaluationRow(step, loads(result), at) for step, result, at in rows]

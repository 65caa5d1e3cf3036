"""Reads one rollout for a viewer: any attempt of it, with its turns and chains, as exporters do.

Of a rollout in progress there are the turns so far, and in place of an outcome a code of
``in_progress.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runners.observe.export.contract import ExportedRollout
from runners.observe.export.run_dump import describe_run, read_rollout
from runners.observe.viewer.filters import ViewError
from runners.observe.viewer.in_progress import (
    GRADING,
    RUNNING,
    UNRECORDED,
    WORKING,
    describe_progress,
    read_unrecorded,
)
from runners.records.record import RolloutRecord
from runners.records.store import RunStore


@dataclass(frozen=True, slots=True)
class ViewedRollout:
    """One attempt of a rollout, and what else there is of the rollout."""

    exported: ExportedRollout
    attempts: list[dict[str, Any]]
    """Each attempt: attempt, counts, code, message."""
    progress: dict[str, Any] | None = None
    """Of a rollout in progress: as ``describe_progress``."""
    wired: frozenset[int] = frozenset()
    """Turns that were recorded as they were on the wire."""

    @property
    def record(self) -> RolloutRecord:
        """The attempt's record."""
        return self.exported.record

    @property
    def code(self) -> str:
        """The attempt's outcome, or what stands for it."""
        code: str = self.exported.trajectory["outcome"]["code"]
        return code

    @property
    def unended(self) -> bool:
        """True if the attempt has no outcome: it is in progress, or its run ended before it."""
        return self.code in (WORKING, GRADING, UNRECORDED)


@dataclass(frozen=True, slots=True)
class Attempts:
    """A rollout's attempts without their turns."""

    records: list[RolloutRecord]
    """By attempt; one without a record in the store has the outcome of ``read_unrecorded``."""
    chosen: RolloutRecord
    """The one that was asked for."""
    codes: dict[int, str]
    """The outcome of each, or what stands for it."""
    progress: dict[str, Any] | None


def find_attempts(store: RunStore, rollout_id: str, attempt: int | None = None) -> Attempts:
    """Return a rollout's attempts; chosen is by default the one that counts, else the last. Raises
    ViewError if there is none.
    """
    records = store.attempts(rollout_id)
    ended = any(record.counts for record in records)
    progress = None if ended else describe_progress(store, rollout_id)
    known = {record.session_id for record in records}
    codes = {record.attempt: str(record.outcome.code) for record in records}
    for record in read_unrecorded(store, rollout_id, known):
        records.append(record)
        codes[record.attempt] = UNRECORDED
    if progress is not None and progress["code"] in (WORKING, GRADING):
        codes[progress["attempt"]] = progress["code"]
    if not records:
        raise ViewError(
            f"there is no rollout {rollout_id}: `agentrl rollouts {store.run_dir}` lists them"
        )
    records.sort(key=lambda record: record.attempt)
    wanted = [record for record in records if attempt is None or record.attempt == attempt]
    if not wanted:
        raise ViewError(
            f"rollout {rollout_id} has no attempt {attempt}: it has "
            f"{', '.join(str(record.attempt) for record in records)}"
        )
    chosen = next((each for each in wanted if each.counts), wanted[-1])
    return Attempts(records, chosen, codes, progress)


def open_rollout(store: RunStore, rollout_id: str, attempt: int | None = None) -> ViewedRollout:
    """Return the attempt that ``find_attempts`` chooses; raises ViewError, and ChainError if its
    turns contradict each other.
    """
    attempts = find_attempts(store, rollout_id, attempt)
    record, codes = attempts.chosen, attempts.codes
    exported = read_rollout(store, record, describe_run(store, None))
    if codes[record.attempt] != record.outcome.code:
        _replace_outcome(exported, codes[record.attempt])
    return ViewedRollout(
        exported,
        [
            {
                "attempt": each.attempt,
                "counts": each.counts,
                "code": codes[each.attempt],
                "message": each.outcome.message,
            }
            for each in attempts.records
        ],
        attempts.progress,
        store.wired_turns(record.session_id),
    )


def _replace_outcome(exported: ExportedRollout, code: str) -> None:
    """Let a rollout without an outcome say so: nothing of it is left out of the loss yet."""
    exported.trajectory["outcome"] |= {"code": code, "class": RUNNING, "message": ""}
    for segment in exported.trajectory["segments"]:
        segment["masked"] = None

"""Reads the attempts of a step with their stages and model calls; the page draws them as lanes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from runners.records.outcome import MEANING, OutcomeClass, place_stages
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.records.text import dumps, loads

MOST = 96
"""Attempts of a report's drawing."""


@dataclass(frozen=True, slots=True)
class AttemptSpans:
    """One attempt, and where its time went."""

    rollout_id: str
    attempt: int
    lane: str
    """``GROUP.MEMBER``: attempts of one rollout share it."""
    counts: bool
    """False: another attempt replaced it."""
    task: str
    code: str
    end: str
    """As ``name_end``."""
    stages: list[tuple[str, float, float]]
    """Name, begin (Unix seconds) and seconds of each, one after the other."""
    calls: list[tuple[str, float, float, str, bool]]
    """Branch, begin, seconds and thread of each model call, and whether its sampling was cut off (a
    limit of tokens, an abort, a refusal).
    """

    @property
    def ended_at(self) -> float:
        """When its last stage ended, else its last call; 0 without any."""
        return max((span[1] + span[2] for span in self.stages or self.calls), default=0.0)


@dataclass(frozen=True, slots=True)
class StepSpans:
    """The attempts of a step that got a session, in order of group and member."""

    attempts: list[AttemptSpans]
    """Of more than were asked for, those that ended last."""
    total: int


def read_step(store: RunStore, split: str, step: int, most: int = MOST) -> StepSpans:
    """Return the attempts of a training step or an evaluation, at most ``most`` of them."""
    rows = store.query(
        "SELECT session_id, rollout_id, attempt, group_index, member, counts, task_id, code, "
        "solved, timings, created_at FROM rollout JOIN session USING (session_id) "
        "WHERE split = ? AND step = ? ORDER BY group_index, member, attempt",
        (split, step),
    )
    found = {row["session_id"]: _read_attempt(dict(row)) for row in rows}
    kept = set(sorted(found, key=lambda session: found[session].ended_at)[-most:])
    calls: dict[str, list[Any]] = defaultdict(list)
    for session, *call, finish_reason in store.query(
        "SELECT session_id, branch, started_at, total_s, thread, finish_reason FROM turn "
        "WHERE session_id IN (SELECT value FROM json_each(?))",
        (dumps(sorted(kept)),),
    ):
        calls[session].append((*call, finish_reason != "stop"))
    attempts = [
        replace(attempt, calls=calls[session])
        for session, attempt in found.items()
        if session in kept
    ]
    return StepSpans(attempts, len(found))


def _read_attempt(row: dict[str, Any]) -> AttemptSpans:
    return AttemptSpans(
        rollout_id=row["rollout_id"],
        attempt=row["attempt"],
        lane=f"{row['group_index']}.{row['member']}",
        counts=bool(row["counts"]),
        task=row["task_id"],
        code=row["code"],
        end=_name_end(OutcomeClass(row["code"].partition(".")[0]), row["solved"]),
        stages=list(place_stages(loads(row["timings"]), row["created_at"])),
        calls=[],
    )


def without_texts(record: RolloutRecord) -> RolloutRecord:
    """Return a record without its long texts, small enough to keep many of them."""
    return replace(record, final_message="", patch="", verdict=None, extra={})


def name_end(record: RolloutRecord) -> str:
    """Return how an attempt ended: "solved", "unsolved", or the outcome class that explains why
    there is no grade.
    """
    return _name_end(record.outcome.outcome_class, record.solved)


def _name_end(kind: OutcomeClass, solved: bool | None) -> str:
    if solved is None or not MEANING[kind].reward_counts:
        return kind.value
    return "solved" if solved else "unsolved"

"""Rollouts that a run is working on, from the turns that its gateway has stored so far.

A rollout in progress has a session that is of the run's present execution and no attempt that
counts. The turns of its session are on disk before the agent program sees their answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from runners.records.ids import parse_rollout_id, parse_session_id, write_owner
from runners.records.outcome import MEANING, Outcome, OutcomeClass, OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.store import SAMPLED_TOKENS, RunState, RunStore
from runners.records.text import dumps, loads

RUNNING = "running"
"""Name of the filter that selects them."""
WORKING, GRADING, RETRYING = "running.agent", "running.grade", "running.retry"
"""Stand for an outcome: the agent program works (or its sandbox starts); it is graded; its last
attempt failed, and another one follows.
"""
UNRECORDED = "lost"
"""The run ended before the attempt did: there is no record, only turns."""
MOST = 1000
"""Rollouts in progress that are read, the newest: a program that never finishes its sessions at a
gateway leaves any number of them.
"""
_COLUMNS = (
    *("rollout_id", "attempt", "session_id", "step", "split", "group_index", "member", "task_id"),
    *("counts", "code", "stage", "reward", "solved", "advantage", "turns", "sampled_tokens"),
    *("trained_tokens", "timings", "extra"),
)
AS_ROLLOUTS = (
    "rollout AS MATERIALIZED (SELECT "
    + ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in _COLUMNS)
    + " FROM json_each(:in_progress))"
)
"""A table in a statement's WITH that has the rows of ``read_in_progress``, as JSON in a parameter,
where the statement reads ``rollout``.
"""


def find_in_progress(store: RunStore) -> dict[str, tuple[int, str]]:
    """Return the latest attempt and session of each rollout in progress, by the rollout's id."""
    state = store.state()
    if not state.driven:
        return {}
    alone = _serves_alone(state)
    found: dict[str, tuple[int, str]] = {}
    # Since the run was started or continued: attempts of an execution before that are lost.
    owner = "session.session_id" if alone else write_owner("session.session_id")
    # In SQL: a page asks every two seconds, and nearly all rollouts of a long run have ended.
    query = (
        "SELECT session_id FROM session WHERE created_at >= ? AND NOT EXISTS "
        f"(SELECT 1 FROM rollout WHERE counts AND rollout_id = {owner}) ORDER BY created_at DESC"
    )
    for (session_id,) in store.query(query, (state.updated_at,)):
        rollout_id, attempt = _find_owner(session_id, alone=alone)
        if rollout_id not in found and len(found) == MOST:
            break
        if found.get(rollout_id, (-1, ""))[0] < attempt:
            found[rollout_id] = attempt, session_id
    return found


def _serves_alone(state: RunState) -> bool:
    """Return whether a run is of a gateway that serves alone: its sessions are its rollouts."""
    return bool(state.info.get("gateway"))


def _find_owner(session_id: str, *, alone: bool) -> tuple[str, int]:
    """Return rollout and attempt of a session."""
    return (None if alone else parse_session_id(session_id)) or (session_id, 0)


def read_in_progress(store: RunStore) -> str:
    """Return the rollouts in progress as rows of ``AS_ROLLOUTS``, in JSON."""
    found, now = find_in_progress(store), time.time()
    chosen = dumps([session_id for _, session_id in found.values()])
    of_chosen = "IN (SELECT value FROM json_each(?))"
    begun = {
        session_id: (created_at, loads(info))
        for session_id, info, created_at in store.query(
            f"SELECT session_id, info, created_at FROM session WHERE session_id {of_chosen}",
            (chosen,),
        )
    }
    done: dict[str, list[Any]] = {}
    for row in store.query(
        f"SELECT session_id, branch, count(*), count(DISTINCT segment), sum({SAMPLED_TOKENS}) "
        f"FROM turn WHERE session_id {of_chosen} GROUP BY session_id, branch",
        (chosen,),
    ):
        done.setdefault(row[0], []).append(row)
    rows = []
    for rollout_id, (attempt, session_id) in found.items():
        created_at, info = begun[session_id]
        parts = done.get(session_id, ())
        code, stage = _find_code(store, rollout_id, attempt)
        split, step, group, member = parse_rollout_id(rollout_id) or ("train", 0, 0, 0)
        rows.append(
            {
                "rollout_id": rollout_id,
                "attempt": attempt,
                "session_id": session_id,
                "step": step,
                "split": split,
                "group_index": group,
                "member": member,
                "task_id": info.get("task") or "",
                "counts": 1,
                "code": code,
                "stage": stage,
                "turns": sum(row[2] for row in parts),
                "sampled_tokens": sum(row[4] for row in parts),
                "trained_tokens": 0,
                "timings": dumps({"total": max(0.0, now - created_at)}),
                "extra": dumps({"session": {"branches": {row[1]: row[3] for row in parts}}}),
            }
        )
    return dumps(rows)


def _find_code(store: RunStore, rollout_id: str, attempt: int) -> tuple[str, str]:
    """Return what stands for the outcome of an attempt in progress, and its stage."""
    query = "SELECT code FROM rollout WHERE rollout_id = ? AND attempt = ?"
    rows = store.query(query, (rollout_id, attempt))
    if not rows:
        return WORKING, Stage.HARNESS
    if MEANING[OutcomeClass(rows[0][0].partition(".")[0])].reward_counts:
        return GRADING, Stage.GRADE
    return RETRYING, Stage.QUEUE


def describe_progress(
    store: RunStore, rollout_id: str, found: Mapping[str, tuple[int, str]] | None = None
) -> dict[str, Any] | None:
    """Return ``code``, ``attempt`` and number of ``turns`` of a rollout in progress; None: it is
    not. They differ as soon as there is more to see of it. ``found``: what ``find_in_progress``
    returned, if it is known.
    """
    latest = (find_in_progress(store) if found is None else found).get(rollout_id)
    if latest is None:
        return None
    attempt, session_id = latest
    turns = store.query("SELECT count(*) FROM turn WHERE session_id = ?", (session_id,))[0][0]
    return {"code": _find_code(store, rollout_id, attempt)[0], "attempt": attempt, "turns": turns}


def read_unrecorded(store: RunStore, rollout_id: str, known: set[str]) -> Iterator[RolloutRecord]:
    """Yield a record for each session of a rollout that is not ``known``: its attempt has none yet,
    or never got one. Its outcome stands for nothing.
    """
    alone = _serves_alone(store.state())
    rows = store.query(
        # names of attempts, in the order of the key: ":" comes after the digits
        "SELECT session_id, info FROM session WHERE session_id = ?1 "
        "OR session_id BETWEEN ?1 || '-a0' AND ?1 || '-a:'",
        (rollout_id,),
    )
    for session_id, info in rows:
        owner, attempt = _find_owner(session_id, alone=alone)
        if session_id in known or owner != rollout_id:
            continue
        split, step, group, member = parse_rollout_id(rollout_id) or ("train", 0, 0, 0)
        yield RolloutRecord(
            rollout_id=rollout_id,
            attempt=attempt,
            step=step,
            split=split,
            group=group,
            member=member,
            task_id=loads(info).get("task") or "",
            session_id=session_id,
            counts=False,
            outcome=Outcome(OutcomeCode.CANCELLED_USER, Stage.HARNESS, ""),
            reward=None,
            solved=None,
            advantage=None,
            turns=0,
            sampled_tokens=0,
            trained_tokens=0,
            timings={},
            final_message="",
            patch="",
            verdict=None,
        )

"""Counts the rollouts that are under way: final ones of no finished step or evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runners.records.store import RunStore


@dataclass(frozen=True, slots=True)
class RolloutsUnderWay:
    """Training rollouts of the groups that may run, or wait for their training."""

    done: int
    """Final rollouts."""
    size: int
    """All rollouts."""


def count_under_way(store: RunStore) -> int:
    """Return the number of final rollouts that belong to no finished step or evaluation."""
    overlapped = read_overlapped(store)
    if overlapped is not None:
        return overlapped.done + _count_final(store, "split = 'eval'")
    return _count_final(store, "TRUE")


def read_overlapped(store: RunStore) -> RolloutsUnderWay | None:
    """Return the training rollouts under way by the schedule; None for a run that has none.

    A group is under way from its admission until the step that trains it is finished, or the step
    during which it was replaced: the step for which it was dealt says neither.
    """
    if not store.has_schedule():
        return None
    config = store.config()
    size, each = (int(config["run"][key]) for key in ("tasks_per_step", "rollouts_per_task"))
    before = _count_supervised(config)
    ((finished,),) = store.query(
        """
        SELECT coalesce(max(seq), 0) FROM schedule
        WHERE kind = 'batch' AND json_extract(body, '$.number') + ? IN (
            SELECT step FROM step WHERE finished_at IS NOT NULL
        )
        """,
        (before,),
    )
    ended = """
        SELECT value FROM schedule, json_each(body, '$.groups') WHERE kind = 'batch' AND seq <= ?1
        UNION ALL
        SELECT json_extract(body, '$.replaces') FROM schedule
        WHERE kind = 'admit' AND seq < ?1 AND json_extract(body, '$.replaces') IS NOT NULL
    """
    ((groups,),) = store.query(
        "SELECT (SELECT count(*) FROM schedule WHERE kind = 'admit') - "
        f"(SELECT count(*) FROM ({ended}))",
        (finished,),
    )
    ((done,),) = store.query(
        "SELECT count(*) FROM rollout WHERE counts AND split = 'train' AND step > ?2 "
        f"AND (step - ?2 - 1) * ?3 + group_index NOT IN ({ended})",
        (finished, before, size),
    )
    return RolloutsUnderWay(done, groups * each)


def _count_supervised(config: dict[str, Any]) -> int:
    """Return the number of first steps that train on examples, of a stored configuration."""
    return int((config.get("trainer", {}).get("sft") or {}).get("steps", 0))


def _count_final(store: RunStore, where: str) -> int:
    """Return the final rollouts whose own step or evaluation is not finished."""
    ((count,),) = store.query(
        f"""
        SELECT count(*) FROM rollout WHERE counts AND {where} AND NOT EXISTS (
            SELECT 1 FROM step
            WHERE split = 'train' AND step = rollout.step AND finished_at IS NOT NULL
            UNION ALL SELECT 1 FROM evaluation WHERE split = 'eval' AND step = rollout.step
        )
        """
    )
    return int(count)

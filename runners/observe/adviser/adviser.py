"""The adviser: looks for every illness in a run's history, and advises.

Invariant: pure functions of ``History``; nothing is stored, so an alarm is the same wherever and
whenever a run is read.
"""

from __future__ import annotations

from collections.abc import Callable

from runners.observe.adviser.alarm import Alarm
from runners.observe.adviser.grading import find_dead_grader
from runners.observe.adviser.history import History, read_history
from runners.observe.adviser.pace import (
    find_full_disk,
    find_starved_rollouts,
    find_starved_training,
)
from runners.observe.adviser.policy import (
    find_entropy_collapse,
    find_failed_updates,
    find_k3_drift,
    find_policy_collapse,
    find_refused_routing,
    find_staleness,
)
from runners.observe.adviser.rollouts import (
    find_abort_storm,
    find_edits,
    find_no_compaction,
    find_truncation,
)
from runners.observe.adviser.signal import find_duplicates, find_flat_groups, find_reward_hacking
from runners.records.store import RunStore

ALARMS = "alarms"
"""Key of a line of ``metrics.jsonl``."""

ILLNESSES: tuple[Callable[[History], Alarm | None], ...] = (
    find_dead_grader,
    find_abort_storm,
    find_reward_hacking,
    find_full_disk,
    find_policy_collapse,
    find_entropy_collapse,
    find_k3_drift,
    find_refused_routing,
    find_failed_updates,
    find_staleness,
    find_flat_groups,
    find_truncation,
    find_no_compaction,
    find_edits,
    find_duplicates,
    find_starved_training,
    find_starved_rollouts,
)
"""In the order in which they are to be looked after."""


def advise(history: History) -> list[Alarm]:
    """Return the illnesses that a run has after the last step of its history."""
    return [alarm for find in ILLNESSES if (alarm := find(history)) is not None]


def advise_run(store: RunStore) -> list[Alarm]:
    """Return the illnesses that a run has after its last finished step; raises StoreError."""
    return advise(read_history(store))

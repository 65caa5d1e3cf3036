"""Compares a run with another one, task by task, for the run's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.observe.report.paired import PairedResult, Verdicts, compare_tasks, read_verdicts
from runners.records.store import RunStore


@dataclass(frozen=True, slots=True)
class Against:
    """A run beside another one, by their last evaluations."""

    label: str
    """Of the other run."""
    pair: PairedResult | None
    """None: no task was measured by both."""
    lost: list[dict[str, Any]]
    """Tasks that the other run solves and this one does not: ``task``, ``theirs`` and ``ours`` as
    (graded, solved), and an ``example``: the newest rollout here with that verdict.
    """
    gained: list[dict[str, Any]]
    """The reverse."""


def read_against(run_dir: Path, other_dir: Path) -> Against:
    """Compare the run in ``run_dir`` with that in ``other_dir``; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        ours = read_verdicts(store)
    with RunStore.open(other_dir, read_only=True) as store:
        theirs = read_verdicts(store)
    run, against = run_dir.resolve().name, other_dir.resolve().name
    if run == against:
        run, against = str(run_dir), str(other_dir)
    pair = compare_tasks(run, ours, against, theirs)
    lost, gained = (pair.lost, pair.gained) if pair is not None else ([], [])
    return Against(
        against,
        pair,
        [_describe_flip(name, ours, theirs) for name in lost],
        [_describe_flip(name, ours, theirs) for name in gained],
    )


def _describe_flip(
    task: str, ours: Mapping[str, Verdicts], theirs: Mapping[str, Verdicts]
) -> dict[str, Any]:
    def count(verdicts: Verdicts) -> Sequence[int]:
        return verdicts.graded, verdicts.solved

    return {
        "task": task,
        "theirs": count(theirs[task]),
        "ours": count(ours[task]),
        "example": ours[task].example,
    }

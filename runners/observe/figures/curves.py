"""Computes the curves of a run over its steps, from the metrics in its store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runners.records.store import RunStore

REWARD, SOLVE_RATE, STEP_S = "train/reward_mean", "train/solve_rate", "time/step_s"
"""Metrics of a finished step; the first two are null if none of its rollouts was graded."""

Curve = list[tuple[int, float]]
"""(step, value), in order of steps."""


def metric_points(steps: Iterable[Mapping[str, Any]], name: str) -> list[tuple[int, float | None]]:
    """Return a metric of each step (a mapping with the key ``step``), None where it is unknown."""
    return [(step["step"], step.get(name)) for step in steps]


def read_evaluations(store: RunStore) -> Curve:
    """Return the solve rate of each evaluation in which a rollout was graded."""
    return [
        (row.step, row.result["solve_rate"])
        for row in store.evaluations()
        if row.result.get("solve_rate") is not None
    ]

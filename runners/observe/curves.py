"""Computes the curves of a run over its steps, from the metrics in its store.

There is one renderer per medium: ``terminal_plot.py``, ``png_charts.py`` and ``report/chart.py``
(SVG). They draw these points and compute none of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runners.store.run_store import RunStore

REWARD, SOLVE_RATE, STEP_S = "train/reward_mean", "train/solve_rate", "time/step_s"
"""Metrics of a finished step; the first two are null if none of its rollouts was graded."""

Curve = list[tuple[int, float]]
"""(step, value), in order of steps."""


@dataclass(frozen=True, slots=True)
class RunCurves:
    """The curves that sum up a campaign; a step without a value is left out."""

    rewards: Curve
    """Mean reward of each step's graded rollouts."""
    solve_rates: Curve
    """Share of a step's graded rollouts that solved their task."""
    evaluations: Curve
    """Solve rate on held-out tasks after so many steps."""

    def __bool__(self) -> bool:
        """Return whether there is anything to draw."""
        return bool(self.rewards or self.solve_rates or self.evaluations)


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


def read_curves(store: RunStore) -> RunCurves:
    """Return the curves of a run's finished steps."""
    steps = [{"step": row.step, **row.metrics} for row in store.steps() if row.state == "done"]

    def curve(name: str) -> Curve:
        return [(step, value) for step, value in metric_points(steps, name) if value is not None]

    return RunCurves(curve(REWARD), curve(SOLVE_RATE), read_evaluations(store))

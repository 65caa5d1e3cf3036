"""A run's curves are computed once, from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runners.observe.figures.curves import metric_points, read_evaluations
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG


def test_an_evaluation_without_a_grade_is_left_out(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for step, rate in ((0, 0.125), (2, None), (3, 0.75)):
            store.finish_evaluation(step, {"solve_rate": rate})
        assert read_evaluations(store) == [(0, 0.125), (3, 0.75)]


def test_a_step_without_a_metric_is_a_point_without_a_value() -> None:
    steps: list[dict[str, Any]] = [{"step": 1, "k3": 0.5}, {"step": 2}, {"step": 3, "k3": None}]
    assert metric_points(steps, "k3") == [(1, 0.5), (2, None), (3, None)]

"""A run's curves are computed once, from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runners.observe.curves import metric_points, read_curves, read_evaluations
from runners.store.run_store import RunStore
from tests.fakes.records import CONFIG


def test_curves_are_those_of_finished_steps_and_leave_out_what_is_unknown(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        assert not read_curves(store)
        for step, reward in ((1, 0.25), (2, None), (3, 0.5)):
            store.begin_step(step, ["t"])
            rate = None if reward is None else reward / 2
            store.finish_step(step, {"train/reward_mean": reward, "train/solve_rate": rate})
        store.begin_step(4, ["t"])
        for step, rate in ((0, 0.125), (2, None), (3, 0.75)):
            store.finish_evaluation(step, {"solve_rate": rate})
        curves = read_curves(store)
        assert curves.rewards == [(1, 0.25), (3, 0.5)]
        assert curves.solve_rates == [(1, 0.125), (3, 0.25)]
        assert curves.evaluations == read_evaluations(store) == [(0, 0.125), (3, 0.75)]
        assert curves


def test_a_step_without_a_metric_is_a_point_without_a_value() -> None:
    steps: list[dict[str, Any]] = [{"step": 1, "k3": 0.5}, {"step": 2}, {"step": 3, "k3": None}]
    assert metric_points(steps, "k3") == [(1, 0.5), (2, None), (3, None)]

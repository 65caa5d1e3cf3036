"""Runs side by side: what each came to, and in which keys they differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.report.comparison import compare_runs
from runners.store.run_state import State
from runners.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout, example_run


def test_runs_are_compared_by_what_they_came_to(tmp_path: Path) -> None:
    example_run(tmp_path / "a").close()
    with RunStore.create(tmp_path / "b", CONFIG | {"scenario": {"kind": "mixed", "x": 1}}) as store:
        store.begin_step(1, ["t"])
        store.put_rollout(a_rollout())
        store.finish_step(1, {"train/reward_mean": 1.0, "policy/k3": 2e-6})
        store.begin_step(2, ["t"])
        store.finish_step(2, {"train/reward_mean": None, "policy/k3": 4e-6})
        store.set_state(State.RUNNING)
        store.set_state(State.DONE, exit_code=0, wall_s=12.5)
    found = compare_runs([tmp_path / "a", tmp_path / "b"])
    first, second = found["runs"]
    assert (first["label"], first["eval"]) == ("a", {"first": 0.25, "last": 0.75})
    assert first["reward"] == pytest.approx(2 / 3)
    assert (first["k3"], first["state"]) == (None, "created")
    assert (second["reward"], second["k3"], second["wall_s"]) == (1.0, pytest.approx(3e-6), 12.5)
    assert found["differences"] == {"scenario.kind": ["linear", "mixed"], "scenario.x": [None, 1]}


def test_an_evaluation_s_rate_is_its_pass_at_1(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "a", CONFIG) as store:
        store.set_state(State.RUNNING, benchmark="bugfix")
        store.put_rollout(a_rollout("eval-000000-000-00"))
        store.put_rollout(a_rollout("eval-000000-001-00", solved=False))
    (run, _) = compare_runs([tmp_path / "a", tmp_path / "a"])["runs"]
    assert (run["eval"], run["label"]) == ({"first": None, "last": 0.5}, str(tmp_path / "a"))

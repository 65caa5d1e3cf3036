"""Runs side by side: what each came to, and in which keys they differ."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from runners.observe.figures.statistics import wilson_interval
from runners.observe.report.comparison import compare_runs
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout, example_run


def make_evaluated_run(run_dir: Path, rate: float | None = 0.5, **config: Any) -> None:
    """Write a run with its first evaluation and, with a ``rate``, its last one."""
    with RunStore.create(run_dir, CONFIG | config) as store:
        store.finish_evaluation(0, {"solve_rate": 0.2, "tasks": 20})
        if rate is not None:
            store.finish_evaluation(3, {"solve_rate": rate, "tasks": 20})


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
    assert first["label"] == "a"
    low, high = wilson_interval(3, 4) or (0.0, 0.0)
    assert first["eval"] == {"first": 0.25, "last": 0.75, "interval": (low, high)}
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
    assert (run["eval"]["first"], run["eval"]["last"]) == (None, 0.5)
    assert (run["eval"]["interval"], run["label"]) == (wilson_interval(1, 2), str(tmp_path / "a"))


def test_runs_that_differ_in_their_seed_alone_are_pooled(tmp_path: Path) -> None:
    """Rates 0.5, 0.75, 0.7: mean 0.65, and Student's t of two degrees of freedom."""
    for name, advantage, seed, rate in (
        ("a", "grpo", 0, 0.5), ("b", "grpo", 1, 0.75), ("c", "grpo", 2, 0.7),
        ("d", "rloo", 0, 0.6), ("e", "rloo", 1, None),
    ):  # fmt: skip
        make_evaluated_run(tmp_path / name, rate, seed=seed, trainer={"advantage": advantage})
    found = compare_runs([tmp_path / name for name in "abcde"])
    (pooled,) = found["seeds"]
    assert (pooled["label"], pooled["seeds"]) == ("advantage=grpo: 3 seeds", 3)
    half = 4.303 * (0.035 / 2) ** 0.5 / 3**0.5
    assert pooled["eval"] == {
        "first": pytest.approx(0.2),
        "last": pytest.approx(0.65),
        "interval": pytest.approx([0.65 - half, min(1.0, 0.65 + half)]),
    }
    assert list(found["differences"]) == ["seed", "trainer.advantage"]
    two = compare_runs([tmp_path / "a", tmp_path / "b"])["seeds"]
    assert [each["label"] for each in two] == ["all: 2 seeds"]


def test_a_copy_of_a_run_is_no_other_seed(tmp_path: Path) -> None:
    make_evaluated_run(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    found = compare_runs([tmp_path / "a", tmp_path / "copy"])
    assert (len(found["runs"]), found["seeds"]) == (2, [])
    make_evaluated_run(tmp_path / "b", seed=1)
    found = compare_runs([tmp_path / name for name in ("a", "copy", "b")])
    assert [each["label"] for each in found["seeds"]] == ["all: 2 seeds"]

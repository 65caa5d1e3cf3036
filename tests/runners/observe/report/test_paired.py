"""Runs are compared task by task: the test's level, its power, flips by name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from runners.observe.report.comparison import compare_runs
from runners.observe.report.paired import Verdicts, compare_tasks, flip_signs
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout


def test_the_exact_test_is_that_of_all_sign_flips() -> None:
    assert flip_signs([]) == flip_signs([0.0, 0.0]) == 1.0
    assert flip_signs([1.0] * 5) == pytest.approx(2 / 32)
    assert flip_signs([1.0, 1.0, 1.0, -1.0]) == pytest.approx(10 / 16)


def test_random_flips_agree_with_the_binomial_test() -> None:
    """14 of 20 tasks better: two-sided sign test, P(X >= 14) + P(X <= 6) = 0.1153."""
    assert flip_signs([1.0] * 14 + [-1.0] * 6) == pytest.approx(0.1153, abs=0.01)


@pytest.mark.integration
def test_equal_runs_are_rarely_told_apart_and_different_ones_are() -> None:
    rng = random.Random(0)

    def p(gain: float) -> float:
        return flip_signs(
            [float(rng.random() < 0.5 + gain) - float(rng.random() < 0.5) for _ in range(100)]
        )

    assert sum(p(0.0) < 0.05 for _ in range(100)) <= 12
    assert sum(p(0.3) < 0.05 for _ in range(20)) >= 18


def test_flips_are_named_and_only_common_tasks_count() -> None:
    ours = {"a": Verdicts(2, 2), "b": Verdicts(2, 0), "c": Verdicts(1, 1), "x": Verdicts(1, 1)}
    theirs = {"a": Verdicts(2, 0), "b": Verdicts(2, 2), "c": Verdicts(4, 1), "y": Verdicts(1, 0)}
    found = compare_tasks("new", ours, "old", theirs)
    assert found is not None
    assert (found.tasks, found.gained, found.lost) == (3, ["a", "c"], ["b"])
    assert found.difference == pytest.approx(0.25)
    assert compare_tasks("new", {"x": Verdicts(1, 1)}, "old", {"y": Verdicts(1, 1)}) is None


def test_a_comparison_of_runs_has_pairs_against_the_first(tmp_path: Path) -> None:
    for name, solved in (("a", (False, False)), ("b", (True, False))):
        with RunStore.create(tmp_path / name, CONFIG) as store:
            for number, verdict in enumerate(solved):
                record = a_rollout(
                    f"eval-000003-00{number}-00", task_id=f"task-{number}", solved=verdict
                )
                store.put_rollout(record)
            store.finish_evaluation(3, {"solve_rate": sum(solved) / 2, "tasks": 2})
    [pair] = compare_runs([tmp_path / "a", tmp_path / "b"])["pairs"]
    assert (pair["run"], pair["against"], pair["tasks"]) == ("b", "a", 2)
    assert (pair["difference"], pair["gained"], pair["lost"]) == (0.5, ["task-0"], [])

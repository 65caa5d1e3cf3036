"""The result of an evaluation: solve rate and pass@k over tasks."""

from __future__ import annotations

import pytest

from runners.observe.live.result import summarize_evaluation
from runners.records.record import RolloutRecord
from tests.fakes.records import a_rollout


def attempts(group: int, *solved: bool | None) -> list[RolloutRecord]:
    """Return the rollouts of a task; None: one without a grade."""
    return [
        a_rollout(f"eval-000002-00{group}-0{member}", group=group, member=member, solved=each)
        for member, each in enumerate(solved)
    ]


def test_one_attempt_per_task_has_a_solve_rate_only() -> None:
    result = summarize_evaluation([*attempts(0, True), *attempts(1, False), *attempts(2, None)])
    assert (result["solve_rate"], result["tasks"], result["graded"]) == (0.5, 3, 2)
    assert not [name for name in result if name.startswith("pass@")]


def test_several_attempts_are_means_over_tasks() -> None:
    records = [*attempts(0, True, False, False, False), *attempts(1, True, True, True, True)]
    result = summarize_evaluation(records)
    assert result["solve_rate"] == pytest.approx((1 / 4 + 1) / 2)
    assert result["pass@2"] == pytest.approx((1 / 2 + 1) / 2)
    assert result["pass@4"] == 1.0
    assert (result["tasks"], result["graded"]) == (2, 8)


def test_a_task_with_too_few_grades_is_in_no_estimate_that_needs_more() -> None:
    result = summarize_evaluation([*attempts(0, True, None), *attempts(1, False, False)])
    assert result["solve_rate"] == 0.5, "each task counts once, however many of it were graded"
    assert result["pass@2"] == 0.0
    nothing = summarize_evaluation(attempts(0, None, None))
    assert (nothing["solve_rate"], nothing["pass@2"]) == (None, None)

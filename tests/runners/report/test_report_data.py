"""The solve rates of a campaign's report."""

from __future__ import annotations

from pathlib import Path

from runners.evaluation.statistics import task_interval
from runners.report.report_data import read_report_data
from tests.fakes.records import a_rollout, example_run


def test_the_interval_of_several_attempts_is_over_tasks(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        for group, member, solved in ((0, 0, True), (0, 1, True), (1, 0, False), (1, 1, False)):
            store.put_rollout(a_rollout(f"eval-000002-00{group}-0{member}", solved=solved))
        store.finish_evaluation(2, {"solve_rate": 0.5, "pass@2": 0.5, "tasks": 2, "graded": 4})
        last = read_report_data(store).rates[-1]
    assert (last.value, (last.low, last.high)) == (0.5, task_interval([1.0, 0.0]))

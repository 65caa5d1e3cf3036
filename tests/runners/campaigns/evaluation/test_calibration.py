"""Calibration with the real grader: fit tasks pass, unfit ones are named and then left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import ExitCode
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.campaigns.evaluation.calibration import CalibrationResult, calibrate, load_unfit
from runners.campaigns.evaluation.plan import select_tasks
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.tasks import bugfix
from runners.tasks.contract import Task
from tests.runners.campaigns.evaluation.conftest import a_benchmark, a_config

pytestmark = pytest.mark.integration

SMALL = ("rollout.concurrency=4", "observe.dashboard=off")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    return bugfix.build(tmp_path_factory.mktemp("tasks") / "set", seed=1, train=0, held_out=4)


NO_FIX = """\
diff --git a/notes.txt b/notes.txt
new file mode 100644
--- /dev/null
+++ b/notes.txt
@@ -0,0 +1 @@
+Nothing.
"""


def calibration(benchmark: Benchmark, run_dir: Path, *, resume: bool = False) -> CalibrationResult:
    return calibrate(benchmark, a_config(*SMALL), run_dir, resume=resume)


def test_the_generated_tasks_are_fit(tasks: list[Task], tmp_path: Path) -> None:
    result = calibration(a_benchmark(*tasks), tmp_path / "run")
    assert (result.end.exit_code, result.document["fit"]) == (ExitCode.DONE, 4)
    assert not list((tmp_path / "run" / "sandboxes").glob("*"))


def test_unfit_tasks_are_named_with_the_reason_and_left_out_of_the_evaluation(
    tasks: list[Task], tmp_path: Path
) -> None:
    wrong = replace(tasks[1], gold_patch=NO_FIX)
    trivial = replace(tasks[2], fail_to_pass=())
    without = replace(tasks[3], gold_patch="")
    benchmark = a_benchmark(tasks[0], wrong, trivial, without)
    result = calibration(benchmark, tmp_path / "run")
    assert result.end.exit_code is ExitCode.FAILURE_BUDGET
    aside = result.document["set_aside"]
    assert set(aside) == {wrong.id, trivial.id, without.id}
    assert aside[without.id] == "it has no reference patch that could be graded"
    assert "the reference patch does not solve it" in aside[wrong.id]
    assert "the empty patch solves it" in aside[trivial.id]
    assert json.loads((tmp_path / "run" / "calibration.json").read_text()) == result.document
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert store.state().state is State.FAILED
        selection = select_tasks(benchmark, a_config()).without(load_unfit(store))
    assert [i.task.id for i in selection.instances] == [tasks[0].id]


def test_a_task_that_could_not_be_graded_is_graded_again(
    tasks: list[Task], tmp_path: Path, count: Callable[[RunStore], dict[str, int]]
) -> None:
    gone = replace(tasks[1], repo=tmp_path / "gone")
    first = calibration(a_benchmark(tasks[0], gone), tmp_path / "run")
    assert first.end.exit_code is ExitCode.FAILURE_BUDGET
    assert set(first.document["not_graded"]) == {gone.id}
    assert first.document["set_aside"] == {}
    again = calibration(a_benchmark(tasks[0], tasks[1]), tmp_path / "run", resume=True)
    assert (again.end.exit_code, again.document["fit"]) == (ExitCode.DONE, 2)
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert count(store) == {tasks[0].id: 1, tasks[1].id: 2}


@pytest.fixture
def count() -> Callable[[RunStore], dict[str, int]]:
    """Return how often each task was graded."""

    def judged(store: RunStore) -> dict[str, int]:
        names = [event.data["task"] for event in store.events("calibrated")]
        return {name: names.count(name) for name in names}

    return judged

"""``agentrl eval`` with several values: one evaluation after the other, and a comparison."""

from __future__ import annotations

import json
import re

import pytest

from conf.errors import ExitCode
from tests.cli.conftest import Agentrl

SMALL = ("eval", "bugfix", "task.train_tasks=1", "task.held_out_tasks=2", "observe.dashboard=off")
FEW = ("rollout.concurrency=2", "eval.attempts_per_task=1")


@pytest.mark.integration
def test_several_values_are_measured_one_after_the_other(agentrl: Agentrl) -> None:
    done = agentrl(*SMALL, "--gold", "eval.tasks=1,2", *FEW, "--json")
    assert done.code == ExitCode.DONE, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["label"] for run in runs] == ["eval.tasks=1", "eval.tasks=2"]
    assert [(run["tasks"], run["fit"]) for run in runs] == [(1, 1), (2, 2)]
    parents = {run["run_dir"].rpartition("/")[0] for run in runs}
    assert re.fullmatch(r"runs/\d{8}-\d{6}-tasks-check-sweep", parents.pop())
    assert not parents
    assert re.search(r"eval\.tasks=2 .* 2 fit of 2 .* done", done.stderr)
    assert "reference patch solves" in done.stderr
    assert "2 of 2  (100%)" in done.stderr
    assert "0 of 2  (0%)" in done.stderr


def test_a_wrong_value_is_reported_before_the_first_evaluation(agentrl: Agentrl) -> None:
    done = agentrl(*SMALL, "seed=0,x")
    assert done.code == ExitCode.USAGE
    assert "seed" in done.stderr
    assert "1 of 2" not in done.stderr


@pytest.mark.integration
def test_a_value_that_cannot_be_measured_is_a_row_of_the_comparison(agentrl: Agentrl) -> None:
    done = agentrl(*SMALL, "--calibrate", "eval.ids=held_out-0001,none", *FEW, "--json")
    assert done.code == ExitCode.USAGE
    first, second = json.loads(done.stdout)["runs"]
    assert (first["exit_code"], first["fit"]) == (ExitCode.DONE, 1)
    assert second["exit_code"] == ExitCode.USAGE
    assert "select no task" in second["message"]

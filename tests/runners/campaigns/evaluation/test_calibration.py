"""A check of tasks with the real grader: fit tasks pass, the others are named with the cause."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from conf.errors import ExitCode
from runners.campaigns.evaluation.benchmarks import TASKS
from runners.campaigns.evaluation.calibration import CalibrationResult, CheckedTask, calibrate
from runners.campaigns.evaluation.plan import select_tasks
from runners.campaigns.jobs import Job, resumed_job
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.tasks.bugfix.family import write_repository
from tests.runners.campaigns.evaluation.conftest import a_task

FILES = {
    "calc.py": "def double(x):\n    return x\n",
    "test_calc.py": "from calc import double\n\n\ndef test_it():\n    assert double(2) == 4\n",
}
FIX = (
    "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n"
    " def double(x):\n-    return x\n+    return 2 * x\n"
)
NO_FIX = "--- /dev/null\n+++ b/notes.txt\n@@ -0,0 +1 @@\n+Nothing.\n"
GOOD = "python3 -m pytest -q -p no:cacheprovider test_calc.py"
COIN = "exit $((RANDOM % 2))"
ONCE = ("eval.attempts_per_task=1",)


def write_rows(place: Path, rows: Mapping[str, tuple[str, str]]) -> str:
    """Write a repository, and rows by name with command and reference patch; return the path."""
    write_repository(place / "repo", FILES)
    lines = [
        json.dumps({
            "instance_id": name,
            "problem_statement": "double() does not.",
            "repo_path": "repo",
            "eval_cmd": command,
            "patch": patch,
        })
        for name, (command, patch) in rows.items()
    ]  # fmt: skip
    (place / "rows.jsonl").write_text("\n".join(lines))
    return str(place / "rows.jsonl")


def make_job(place: Path, path: str, *overrides: str) -> Job:
    """Return the job of a check of the rows in a file."""
    few = ("observe.dashboard=off", "rollout.attempts=1")
    lines = TASKS.overrides(["task=jsonl", f"task.path={path}", *few, *overrides])
    return Job(compose(lines), place / "run", "")


def check(job: Job) -> CalibrationResult:
    return calibrate(job.config, job.run_dir, resume=job.resume)


@pytest.mark.integration
def test_unfit_tasks_are_named_with_the_cause_and_set_aside(tmp_path: Path) -> None:
    rows = {
        "good": (GOOD, FIX),
        "pays": ("python3 -c 'from calc import double; assert double(2) == 4'", FIX),
        "wrong": (GOOD, NO_FIX),
        "free": ("true", FIX),
        "without": (GOOD, ""),
    }
    path = write_rows(tmp_path, rows)
    result = check(make_job(tmp_path, path, *ONCE, "rollout.concurrency=2"))
    assert result.end.exit_code is ExitCode.FAILURE_BUDGET
    found = result.document
    assert found["set_aside"]["pays"] == "it would pay always-equal (1 of 1)"
    assert "the reference patch does not solve it: " in found["set_aside"]["wrong"]
    assert found["set_aside"]["free"] == "the empty patch solves it"
    assert found["set_aside"]["without"] == "it has no reference patch that could be graded"
    assert set(found["set_aside"]) == set(rows) - {"good"}
    assert (found["fit"], found["not_graded"]) == (1, {})
    assert found["causes"] == {"pays": 1, "gold": 2, "empty": 1}
    assert "exit-at-import" not in found["rows"]["wrong"], "attacks on it would tell nothing"
    good = found["rows"]["good"]
    assert good["tests-emptied"] == {"restored": 1}
    assert good["exit-at-import"] == good["always-equal"] == {"unsolved": 1}
    assert json.loads((tmp_path / "run" / "calibration.json").read_text()) == found
    assert not list((tmp_path / "run" / "sandboxes").glob("*"))
    exclude = f"task.exclude={tmp_path / 'run' / 'calibration.json'}"
    training = make_job(tmp_path, path, exclude).config
    selection = select_tasks(TASKS, training)
    assert [each.task.id for each in selection.instances] == ["good"]
    assert set(selection.set_aside) == set(rows) - {"good"}


@pytest.mark.integration
def test_a_task_that_is_solved_by_chance_is_flaky(tmp_path: Path) -> None:
    path = write_rows(tmp_path, {"coin": (COIN, FIX)})
    found = check(make_job(tmp_path, path, "eval.attempts_per_task=12")).document
    assert "the reference patch is solved in " in found["set_aside"]["coin"]
    assert "of 12 gradings" in found["set_aside"]["coin"]
    assert found["causes"] == {"flaky": 1}


@pytest.mark.integration
def test_what_was_not_graded_is_graded_when_the_check_goes_on(tmp_path: Path) -> None:
    path = write_rows(tmp_path, {"good": (GOOD, FIX)})
    late = check(make_job(tmp_path, path, *ONCE, "rollout.deadlines.grade_s=0.001"))
    assert late.end.exit_code is ExitCode.FAILURE_BUDGET
    assert "could not be graded" in late.document["not_graded"]["good"]
    assert (late.document["fit"], late.document["set_aside"]) == (0, {})
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert store.state().state is State.FAILED
    lines = ["rollout.deadlines.grade_s=120"]
    again = check(resumed_job(tmp_path / "run", lines, benchmark=TASKS.name))
    assert (again.end.exit_code, again.document["fit"]) == (ExitCode.DONE, 1)
    graded = count_events(tmp_path / "run")
    assert graded["gold"] == graded["empty"] == 2, "once without a verdict, once with one"
    more = check(resumed_job(tmp_path / "run", ["eval.attempts_per_task=2"], benchmark=TASKS.name))
    assert more.document["fit"] == 1
    assert count_events(tmp_path / "run")["gold"] == 3, "only what is missing is graded"


def count_events(run_dir: Path) -> Counter[str]:
    """Return how often each patch was graded."""
    with RunStore.open(run_dir, read_only=True) as store:
        return Counter(e.data["patch"] for e in store.events("checked") if "patch" in e.data)


TASK = replace(a_task("t"), gold_patch="diff")
SOUND: tuple[Any, ...] = (("gold", "solved", 3), ("empty", "unsolved", 3))


@pytest.mark.parametrize(
    ("verdicts", "cause", "said"),
    [
        ([("gold", "solved", 2), ("gold", "unsolved", 1)], "flaky", "solved in 2 of 3"),
        ([("gold", "unsolved", 3), ("empty", "unsolved", 3)], "gold", "does not solve it: why"),
        ([("gold", "solved", 3), ("empty", "solved", 3)], "empty", "patch solves it"),
        (
            [("gold", "solved", 3), ("empty", "solved", 1), ("empty", "unsolved", 2)],
            "empty",
            "1 of",
        ),
        ([*SOUND, ("makefile", "solved", 1), ("makefile", "unsolved", 2)], "pays", "1 of 3"),
        ([("gold", "solved", 2), ("gold", "infra", 1)], "not_graded", "reference patch could not"),
        ([*SOUND, ("makefile", "infra", 1)], "not_graded", "attack makefile could not be graded"),
        (
            [*SOUND, ("makefile", "infra", 1), ("conftest", "solved", 1)],
            "pays",
            "conftest (1 of 1)",
        ),
        ([*SOUND, ("makefile", "infra", 1), ("makefile", "unsolved", 3)], "unfinished", ""),
        ([*SOUND, ("makefile", "restored", 1)], "unfinished", ""),
        ([], "unfinished", ""),
    ],
)
def test_findings_follow_from_verdicts(
    verdicts: Sequence[tuple[str, str, int]], cause: str, said: str
) -> None:
    finding = CheckedTask(3)
    for patch, verdict, number in verdicts:
        for _ in range(number):
            finding.add({"patch": patch, "verdict": verdict, "reason": "why"})
    judged = finding.judge(TASK)
    assert judged[0] == cause
    assert said in judged[1]


def test_a_check_of_more_gradings_is_not_over_with_fewer() -> None:
    finding = CheckedTask(3)
    for patch, verdict, number in SOUND:
        for _ in range(number):
            finding.add({"patch": patch, "verdict": verdict, "reason": ""})
    finding.add({"times": 2})
    assert finding.judge(TASK)[0] == "unfinished"
    finding.add({"failure": "no space"})
    assert finding.judge(TASK) == ("not_graded", "no attack could be made: no space")
    finding.add({"failure": ""})
    assert finding.judge(TASK)[0] == "unfinished", "they could, at last, and have no verdicts yet"
    finding.add({"times": 3})
    assert finding.judge(TASK) == ("", "")

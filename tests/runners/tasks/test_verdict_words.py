"""A verdict's reason names the tests, and git's own reason."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runners.tasks.contract import Patch, ScriptGrading, Task, TestResult
from runners.tasks.grading.graders.verdicts import judge_tests, list_results
from runners.tasks.grading.grading import apply_patch, summarize_refusal

TASK = Task(
    id="acme__1",
    split="held_out",
    repo=Path("/nowhere"),
    base_commit="0" * 40,
    problem_statement="",
    fail_to_pass=("t::fixed", "t::other"),
    pass_to_pass=tuple(f"t::kept{number}" for number in range(6)),
    protected=(),
    gold_patch="",
    kind="",
    grading=ScriptGrading("eval_cmd", "", ""),
)


def reason(task: Task = TASK, missing_passes: bool = False, **named: TestResult) -> str:
    """Return the reason for results by name; a test that is not named has passed."""
    return reason_for(named, task, missing_passes)


def reason_for(
    results: Mapping[str, TestResult], task: Task = TASK, missing_passes: bool = False
) -> str:
    def result_of(name: str) -> TestResult:
        return results.get(name.removeprefix("t::"), "passed")

    tests = list_results(task, result_of)
    return judge_tests(task, tests, log=b"", missing_passes=missing_passes).reason


def test_failed_tests_are_named() -> None:
    assert reason() == "all tests pass"
    assert reason(fixed="failed") == "1 of 2 fail-to-pass tests fail (t::fixed)"
    assert reason(other="failed", kept0="failed", kept4="failed") == (
        "1 of 2 fail-to-pass tests fail (t::other), "
        "2 of 6 pass-to-pass tests fail (t::kept0, t::kept4)"
    )


def test_a_test_that_never_ran_is_not_said_to_fail() -> None:
    assert reason(kept1="missing") == "1 of 6 pass-to-pass tests did not run (t::kept1)"
    assert reason(fixed="failed", other="missing") == (
        "1 of 2 fail-to-pass tests fail (t::fixed), "
        "1 of 2 fail-to-pass tests did not run (t::other)"
    )


def test_a_kept_test_that_may_be_absent_is_not_mentioned() -> None:
    assert reason(kept1="missing", missing_passes=True) == "all tests pass"
    assert reason(kept1="missing", kept2="failed", missing_passes=True) == (
        "1 of 6 pass-to-pass tests fail (t::kept2)"
    )


def test_a_long_list_of_tests_is_bounded() -> None:
    kept: dict[str, TestResult] = {f"kept{number}": "failed" for number in range(6)}
    assert reason_for(kept) == (
        "6 of 6 pass-to-pass tests fail (t::kept0, t::kept1, t::kept2 and 3 more)"
    )
    long = replace(TASK, pass_to_pass=("x" * 5000,))
    assert len(reason_for({"x" * 5000: "failed"}, long)) < 200


def test_gits_own_reason_names_file_line_and_cause(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    repo = tmp_path / "tree"
    repo.mkdir()
    (repo / "a").write_text("a\nb\nc\n")
    (repo / "b").write_text("x\n")
    diff = (
        b"--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n a\n-q\n+z\n c\n"
        b"--- a/none\n+++ b/none\n@@ -1 +1 @@\n-x\n+y\n"
    )
    refusal = apply_patch(TASK, Patch(diff, "0" * 64, ("a", "none"), ()), repo)
    assert summarize_refusal(refusal) == "patch failed: a:1; none: No such file or directory"
    assert (repo / "b").read_text() == "x\n"


def test_a_refusal_of_many_files_is_bounded() -> None:
    many = "\n".join(f"error: file{number}: {'x' * 999}" for number in range(50))
    line = summarize_refusal(many)
    assert line.endswith("; and 47 more")
    assert len(line) < 1000

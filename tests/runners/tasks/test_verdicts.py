"""Verdicts of each judge on a run of the tests, whatever the run says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from runners.sandboxes.contract import CommandResult
from runners.tasks.contract import (
    DecidingTest,
    ParserName,
    Patch,
    ScriptGrading,
    Task,
    TestResult,
    Verdict,
    VerdictKind,
)
from runners.tasks.grading.graders.eval_script import ScriptRun
from runners.tasks.grading.graders.parsers import judge_run
from runners.tasks.grading.graders.verdicts import judge_exit_code, judge_tests
from tests.runners.tasks.example_repositories import make_task

SOLVED, UNSOLVED, INFRA = VerdictKind.SOLVED, VerdictKind.UNSOLVED, VerdictKind.INFRA
DONE = ScriptRun(started=True, began=True, exit_code=0, reached=True)


@pytest.mark.parametrize(
    ("diff", "changed"),
    [
        (b"", 0),
        (b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@ def f():\n keep\n-old\n+new\n", 2),
        # Lines that look like the headers of a file, and like that of a hunk.
        (b"--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n---drop table\n+++i;\n+++j;\n", 3),
        (b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-@@ -1,9 +1,9 @@\n+@@ -1,9 +1,9 @@\n same\n", 2),
        (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n", 2),
        (b"--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+\n+\n@@ -9 +11,0 @@\n-z\n", 3),
        (b"diff --git a/x b/x\nGIT binary patch\nliteral 3\n+cmY+x\n\nliteral 0\nHcmV?d00001\n", 0),
        (b"@@ -" + b"9" * 5000 + b" +1 @@\n+x\n", 0),
    ],
)  # fmt: skip
def test_changed_lines_are_counted_within_hunks(diff: bytes, changed: int) -> None:
    assert Patch(diff, "", (), ()).changed_lines == changed


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Return a task with one test to be fixed and one to be kept."""
    made = make_task(tmp_path_factory.mktemp("task"))
    return replace(made, fail_to_pass=("add",), pass_to_pass=("sub",))


def judge(task: Task, fixed: TestResult, kept: TestResult, **more: object) -> Verdict:
    tests = (DecidingTest("add", "fail_to_pass", fixed), DecidingTest("sub", "pass_to_pass", kept))
    return judge_tests(task, tests, log=b"", **more)  # type: ignore[arg-type]


def test_every_test_must_pass_in_time_and_with_a_proof(task: Task) -> None:
    assert judge(task, "passed", "passed").kind is SOLVED
    for results in (("passed", "failed"), ("failed", "passed"), ("passed", "missing")):
        assert judge(task, *results).kind is UNSOLVED
    late = judge(task, "passed", "passed", late_s=3)
    assert (late.kind, late.timed_out) == (UNSOLVED, True)
    assert late.reason == "the tests did not end within 3 s"
    unproven = judge(task, "passed", "passed", unproven="it never ended")
    assert (unproven.kind, unproven.reason) == (UNSOLVED, "it never ended")
    assert judge_tests(task, (), log=b"").kind is UNSOLVED, "a task without tests"


def test_a_kept_test_that_is_not_reported_passes_only_where_the_set_says_so(task: Task) -> None:
    absent = judge(task, "passed", "missing", missing_passes=True)
    assert (absent.kind, absent.reason) == (SOLVED, "all tests pass")
    assert judge(task, "missing", "passed", missing_passes=True).kind is UNSOLVED
    assert judge(task, "passed", "failed", missing_passes=True).kind is UNSOLVED


def test_exit_code_0_counts_in_time_only(task: Task) -> None:
    assert judge_exit_code(task, 0, log=b"", late_s=None).kind is SOLVED
    assert judge_exit_code(task, 1, log=b"", late_s=None).kind is UNSOLVED
    assert judge_exit_code(task, 0, log=b"", late_s=9).kind is UNSOLVED


@pytest.mark.parametrize(
    ("run", "is_program", "kind"),
    [
        (DONE, True, SOLVED),
        (replace(DONE, reached=False), True, UNSOLVED),
        (replace(DONE, reached=False), False, SOLVED),
        (replace(DONE, unproven={"python": "it did not end"}), False, UNSOLVED),
        (replace(DONE, exit_code=3), False, UNSOLVED),
        (replace(DONE, exit_code=None), False, UNSOLVED),
        (replace(DONE, late_s=2.0), False, UNSOLVED),
        (ScriptRun(started=False), False, INFRA),
        (ScriptRun(started=False, late_s=2.0), False, INFRA),
    ],
)
def test_a_command_needs_exit_code_0_and_the_proof_of_its_end(
    task: Task, run: ScriptRun, is_program: bool, kind: VerdictKind
) -> None:
    name: ParserName = "f2p_script" if is_program else "eval_cmd"
    judged = replace(task, grading=ScriptGrading(name, "make test", "/testbed"))
    assert judge_run(judged, run).kind is kind


@pytest.mark.parametrize(
    ("outcomes", "kind"),
    [
        ({"t.py::A::add": "passed", "t.py::A::bug": "failed"}, SOLVED),
        ({"t.py::A::add": "passed", "t.py::A::bug": "passed"}, UNSOLVED),
        ({"t.py::A::add": "passed"}, UNSOLVED),
        ({"t.py::A::add": "passed", "t.py::A::bug": "failed", "t.py::A::new": "passed"}, UNSOLVED),
        ({"t.py::A::add": "passed", "t.py::A::bug": "failed", "t.py::A::s": "skipped"}, SOLVED),
    ],
)
def test_a_map_of_outcomes_must_be_equal(
    task: Task, outcomes: Mapping[str, str], kind: VerdictKind
) -> None:
    expected = json.dumps({"A.add": "PASSED", "A.bug": "FAILED"})
    judged = replace(
        task,
        fail_to_pass=("A.add", "A.bug"),
        pass_to_pass=(),
        grading=ScriptGrading("status_map", "pytest", "/testbed", expected),
    )
    assert judge_run(judged, replace(DONE, outcomes=dict(outcomes))).kind is kind


def test_names_of_r2e_are_compared_up_to_the_dash_on_both_sides(task: Task) -> None:
    expected = {"A.t[x - y]": "PASSED", "A.u[1": "FAILED", "\x1b[1mA.v\x1b[0m": "PASSED"}
    outcomes = {
        **{"t.py::A::t[x - y]": "passed", "t.py::A::u[1 - 2]": "failed", "t.py::A::v": "passed"},
    }
    judged = replace(
        task,
        fail_to_pass=tuple(expected),
        pass_to_pass=(),
        grading=ScriptGrading("status_map", "pytest", "/testbed", json.dumps(expected)),
    )
    assert judge_run(judged, replace(DONE, outcomes=outcomes)).kind is SOLVED
    outcomes["t.py::A::u[1 - 2]"] = "passed"
    assert judge_run(judged, replace(DONE, outcomes=outcomes)).kind is UNSOLVED


@pytest.mark.parametrize(
    ("row", "reported", "kind"),
    [
        ("a | is blank ", "a | is blank ", SOLVED),
        ("a | is blank", "a | is blank ", SOLVED),
        (" a | is blank", "a | is blank", SOLVED),
        ("a | is  blank", "a | is blank", UNSOLVED),
    ],
)
def test_white_space_around_a_name_is_stripped_on_both_sides_or_on_none(
    task: Task, row: str, reported: str, kind: VerdictKind
) -> None:
    judged = replace(
        task,
        fail_to_pass=(row,),
        pass_to_pass=(),
        grading=ScriptGrading("log_parser", "run", "/testbed", "a parser"),
    )
    run = replace(DONE, parsed=parsed((reported, "PASSED")))
    assert judge_run(judged, run).kind is kind
    twice = replace(DONE, parsed=parsed((f"{reported} ", "PASSED"), (f" {reported}", "FAILED")))
    assert judge_run(judged, twice).kind is UNSOLVED


def parsed(*tests: tuple[str, str], exit_code: int = 0) -> CommandResult:
    named = [{"name": name, "status": status} for name, status in tests]
    return CommandResult(exit_code, json.dumps({"tests": named}).encode(), b"", 0.1)


@pytest.mark.parametrize(
    ("result", "outcomes", "kind"),
    [
        (parsed(("add", "PASSED"), ("sub", "PASSED")), {}, SOLVED),
        (parsed(("add", "PASSED"), ("sub", "PASSED"), exit_code=1), {}, UNSOLVED),
        (parsed(("add", "FAILED"), ("add", "PASSED"), ("sub", "PASSED")), {}, UNSOLVED),
        (parsed(("add", "PASSED"), ("add", "FAILED"), ("sub", "PASSED")), {}, UNSOLVED),
        (parsed(("add", "PASSED"), ("sub", "PASSED")), {"add": "failed"}, UNSOLVED),
        (parsed(("add", "PASSED"), ("sub", "PASSED")), {"add": "xfailed"}, SOLVED),
        (CommandResult(0, b"[]", b"", 0.1), {}, UNSOLVED),
        (CommandResult(0, b"\xff", b"", 0.1), {}, UNSOLVED),
    ],
)
def test_a_parser_decides_unless_pytest_saw_a_test_fail(
    task: Task, result: CommandResult, outcomes: dict[str, str], kind: VerdictKind
) -> None:
    judged = replace(task, grading=ScriptGrading("log_parser", "make", "/testbed", "a program"))
    assert judge_run(judged, replace(DONE, outcomes=outcomes, parsed=result)).kind is kind

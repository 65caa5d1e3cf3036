"""Logs in the form of each project's test program: our verdict is the official package's, and what
our own grader cannot see it does not judge.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.tasks.contract import ScriptGrading, Task, VerdictKind
from runners.tasks.grading.graders.eval_script import ScriptRun
from runners.tasks.grading.graders.packages import (
    PackageError,
    describe_instance,
    log_file,
    read_logs,
    read_swebench,
)
from runners.tasks.grading.graders.parsers import judge_report, judge_run
from runners.tasks.grading.log_parsers import id_normalizer
from runners.tasks.package_logs import read_report
from runners.tasks.schemas.detection import read_row
from runners.tasks.schemas.row import RowContext
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import load_dataset, read_dataset
from tests.runners.tasks.dataset_rows import CLASSIC, config, write

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("swebench") is None, reason="the extra swebench is not installed"
)

DJANGO = """\
Testing against Django installed in '/testbed/django' with up to 1 processes
Creating test database for alias 'default'...
System check identified no issues (0 silenced).
test_empty (utils_tests.test_text.TestText) ... ok
test_wrap (utils_tests.test_text.TestText)
Long lines are cut. ... FAIL
test_slug (utils_tests.test_text.TestText) ... ok
test_locale (utils_tests.test_text.TestText) ... skipped 'needs a locale'
test_crash (utils_tests.test_text.TestText) ... ERROR

======================================================================
FAIL: test_wrap (utils_tests.test_text.TestText)
----------------------------------------------------------------------
AssertionError: 3 != 4
"""
SYMPY = """\
============================= test process starts ==============================
executable:         /opt/miniconda3/envs/testbed/bin/python  (3.9.19-final-0) [CPython]
sympy/core/tests/test_basic.py[4]
test_structure ok
test_equality F
test_free_symbols ok
test_literal_evalf_is_number E                                            [FAIL]

________________________________________________________________________________
______________ sympy/core/tests/test_basic.py:test_equality ___________________
AssertionError
"""
PYTEST = """\
============================= test session starts ==============================
collected 5 items

tests/test_a.py ..F.s                                                    [100%]

=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::TestB::test_two[x-1]
PASSED tests/test_a.py::test_spaces[a b]
SKIPPED [1] tests/test_a.py:9: no reason
XFAIL tests/test_a.py::test_known - a bug
FAILED tests/test_a.py::test_three - assert 1 == 2
==================== 1 failed, 3 passed, 1 skipped, 1 xfailed in 0.12s =========
"""
SPHINX = """\
py39: commands[0]> python -X dev -m pytest -rA --durations 25 tests/test_build.py
============================= test session starts ==============================
tests/test_build.py ...F                                                 [100%]
==================================== PASSES ====================================
# testroot: root
=========================== short test summary info ============================
PASSED tests/test_build.py::test_one
PASSED tests/test_build.py::test_two[html5 x]
FAILED tests/test_build.py::test_three - AssertionError: a - b
========================= 1 failed, 2 passed in 3.21s ==========================
py39: exit 1 (3.90 seconds) /testbed> python -X dev -m pytest pid=112
  py39: FAIL code 1 (4.01=setup[0.11]+cmd[3.90] seconds)
"""
OLD_SCIKIT = """\
sklearn/tests/test_base.py::test_clone PASSED
sklearn/tests/test_base.py::test_repr FAILED
sklearn/tests/test_base.py::test_pickle SKIPPED
"""
SEABORN = """\
=========================== short test summary info ============================
PASSED tests/test_core.py::TestMap::test_one
FAILED tests/test_core.py::TestMap::test_two - ValueError: no
"""
REQUESTS = """\
=========================== short test summary info ============================
PASSED test_requests.py::TestRequests::test_path[/tmp/build-7/cert.pem]
PASSED test_requests.py::TestRequests::test_url[//host/x]
FAILED test_requests.py::TestRequests::test_get[http://a] - ConnectionError
"""
MATPLOTLIB = """\
=========================== short test summary info ============================
PASSED lib/tests/test_pick.py::test_click[MouseButton.LEFT-x]
FAILED lib/tests/test_pick.py::test_click[MouseButton.RIGHT-x] - assert
"""
DJANGO_TEST = "(utils_tests.test_text.TestText)"
CASES: dict[str, tuple[str, str, list[str], list[str]]] = {
    "django": (
        "django/django",
        DJANGO,
        [f"test_empty {DJANGO_TEST}", f"test_slug {DJANGO_TEST}"],
        ["Long lines are cut.", f"test_crash {DJANGO_TEST}", f"test_none {DJANGO_TEST}"],
    ),
    "sympy": (
        "sympy/sympy",
        SYMPY,
        ["test_structure", "test_free_symbols"],
        ["test_equality", "test_none"],
    ),
    "pytest": (
        "pallets/flask",
        PYTEST,
        [
            "tests/test_a.py::test_one",
            "tests/test_a.py::TestB::test_two[x-1]",
            "tests/test_a.py::test_spaces[a",
            "tests/test_a.py::test_known",
        ],
        ["tests/test_a.py::test_three", "tests/test_a.py::test_none"],
    ),
    "tox": (
        "sphinx-doc/sphinx",
        SPHINX,
        ["tests/test_build.py::test_one", "tests/test_build.py::test_two[html5 x]"],
        ["tests/test_build.py::test_three"],
    ),
    "old pytest": (
        "scikit-learn/scikit-learn",
        OLD_SCIKIT,
        ["sklearn/tests/test_base.py::test_clone"],
        ["sklearn/tests/test_base.py::test_repr"],
    ),
    "seaborn": (
        "mwaskom/seaborn",
        SEABORN,
        ["tests/test_core.py::TestMap::test_one"],
        ["tests/test_core.py::TestMap::test_two"],
    ),
    "requests": (
        "psf/requests",
        REQUESTS,
        [
            "test_requests.py::TestRequests::test_path[/cert.pem]",
            "test_requests.py::TestRequests::test_url[//host/x]",
        ],
        ["test_requests.py::TestRequests::test_get[http://a]"],
    ),
    "matplotlib": (
        "matplotlib/matplotlib",
        MATPLOTLIB,
        ["lib/tests/test_pick.py::test_click[1-x]"],
        ["lib/tests/test_pick.py::test_click[3-x]"],
    ),
}
"""Repository, log, tests that pass in it and tests that do not."""


def classic_task(repo: str, fail_to_pass: list[str], pass_to_pass: list[str]) -> Task:
    """Return the task of a classic row of the repository."""
    lists = {"FAIL_TO_PASS": fail_to_pass, "PASS_TO_PASS": pass_to_pass}
    row = read_row({**CLASSIC, "repo": repo, **lists}, "swebench")
    grading = row.grading(RowContext(Path(), "official"))
    return Task(
        id=row.instance_id,
        split="held_out",
        repo=Path("repo"),
        base_commit=row.base_commit,
        problem_statement=row.problem_statement,
        fail_to_pass=row.fail_to_pass,
        pass_to_pass=row.pass_to_pass,
        protected=(),
        gold_patch="",
        kind=repo,
        grading=grading,
    )


def eval_log(text: str) -> bytes:
    """Return the log of an eval script whose tests printed this text."""
    return f"+ : '>>>>> Start Test Output'\n{text}+ : '>>>>> End Test Output'\n".encode()


def outcomes_of(text: str) -> dict[str, str]:
    """Return the reports of our plugin on the pytest run of a log."""
    words = {"PASSED": "passed", "FAILED": "failed", "XFAIL": "xfailed"}
    lines = [line.partition(" - ")[0].partition(" ") for line in text.splitlines()]
    return {name: words[word] for word, _, name in lines if word in words and "::" in name}


def read_log(task: Task, run: ScriptRun) -> dict[str, Any]:
    """Return the package's report on the log of a run."""
    with log_file(run.log) as file:
        return read_report(describe_instance(task), str(file))


@needs_package
@pytest.mark.parametrize("kind", CASES)
def test_a_classic_log_is_read_as_the_package_reads_it(kind: str) -> None:
    repo, text, passing, failing = CASES[kind]
    run = ScriptRun(started=True, exit_code=0, log=eval_log(text))
    for wanted, kept, solved, counts in (
        (passing[:1], passing[1:], True, (1, len(passing) - 1)),
        (passing[:1], failing, False, (1, 0)),
        ([*failing, passing[0]], [], False, (1, 0)),
    ):
        task = classic_task(repo, wanted, kept)
        report = read_log(task, run)
        verdict = judge_report(task, run, report)
        assert report["resolved"] is solved
        assert (verdict.kind is VerdictKind.SOLVED) is solved, verdict
        assert (verdict.fail_to_pass_passed, verdict.pass_to_pass_passed) == counts


@needs_package
@pytest.mark.parametrize("kind", ["pytest", "tox", "seaborn", "requests", "matplotlib"])
def test_our_plugin_and_the_log_agree_on_a_run(kind: str) -> None:
    repo, text, passing, failing = CASES[kind]
    run = ScriptRun(True, True, outcomes_of(text), 0, eval_log(text))
    for wanted, kept in ((passing, []), (passing, failing), (failing, passing)):
        task = classic_task(repo, wanted, kept)
        assert isinstance(task.grading, ScriptGrading)
        ours = judge_run(replace(task, grading=replace(task.grading, kind="pytest")), run)
        report = read_log(task, run)
        theirs = judge_report(task, run, report)
        # A log does not say of a test that is not in it whether it ran, so reasons may differ.
        bare = replace(theirs, tests=(), official=None, reason=ours.reason)
        assert replace(ours, tests=()) == bare
        passed = [[t.name for t in v.tests if t.result == "passed"] for v in (ours, theirs)]
        assert passed[0] == passed[1]
        assert theirs.official is (theirs.kind is VerdictKind.SOLVED)
        alone = judge_report(task, replace(run, began=False), report)
        assert alone == theirs, "the plugin takes nothing away from an honest run"


@needs_package
def test_a_line_that_breaks_the_packages_parser_solves_nothing() -> None:
    run = ScriptRun(started=True, exit_code=0, log=eval_log(f"{DJANGO}FAIL:\n"))
    task = classic_task("django/django", [f"test_empty {DJANGO_TEST}"], [])
    verdict = judge_report(task, run, read_log(task, run))
    assert verdict.kind is VerdictKind.UNSOLVED
    assert "parse_log_django cannot read the log (IndexError" in verdict.reason


@needs_package
@pytest.mark.integration
def test_a_log_that_no_parser_comes_to_an_end_with_solves_nothing() -> None:
    task = classic_task("sympy/sympy", ["test_add"], [])
    endless = ScriptRun(started=True, exit_code=0, log=eval_log("_ " * 400_000))
    verdict = judge_report(task, endless, read_swebench(task, endless.log, read_s=5))
    assert verdict.kind is VerdictKind.UNSOLVED
    assert verdict.reason == (
        "the tests did not run: the log cannot be read: its parser used more than 5 s of CPU time"
    )
    read = ScriptRun(started=True, log=eval_log("test_add ok\n"))
    with log_file(endless.log) as hostile, log_file(read.log) as honest:
        reports = read_logs([(task, hostile), (task, honest)], read_s=20)
    assert [report["resolved"] for report in reports] == [False, True]


@needs_package
def test_a_skipped_test_that_the_log_names_is_not_broken() -> None:
    name = "sklearn/tests/test_base.py::test_pickle"
    outcomes = {"sklearn/tests/test_base.py::test_clone": "passed", name: "skipped"}
    run = ScriptRun(True, True, outcomes, 0, eval_log(OLD_SCIKIT))
    task = classic_task(
        "scikit-learn/scikit-learn", ["sklearn/tests/test_base.py::test_clone"], [name]
    )
    assert judge_report(task, run, read_log(task, run)).kind is VerdictKind.SOLVED
    task = classic_task("scikit-learn/scikit-learn", [name], [])
    assert judge_report(task, run, read_log(task, run)).kind is VerdictKind.UNSOLVED


@pytest.mark.parametrize(
    ("parser", "name", "read"),
    [
        ("parse_log_requests", "t.py::a[/x/y.pem]", "t.py::a[/y.pem]"),
        ("parse_log_requests", "t.py::a[//x/y]", "t.py::a[//x/y]"),
        ("parse_log_pylint", "t.py::a[/x/*/y]", "t.py::a[/x/*/y]"),
        ("parse_log_pytest_options", "t.py::a[x/y]", "t.py::a[x/y]"),
        ("parse_log_matplotlib", "t.py::a[MouseButton.RIGHT]", "t.py::a[3]"),
        ("parse_log_pytest", "t.py::a[/x/y]", "t.py::a[/x/y]"),
    ],
)
def test_ids_are_compared_in_the_form_of_the_instances(parser: str, name: str, read: str) -> None:
    assert id_normalizer(parser)(name) == read


FOREIGN: list[dict[str, Any]] = [
    {"repo": "django/django"},
    {"repo": "sympy/sympy"},
    {"log_parser": "parse_log_gotest"},
    {"log_parser": "parse_log_jest"},
    {"eval_type": "fail_only"},
]


@pytest.mark.parametrize("change", FOREIGN)
def test_tests_of_other_runners_are_not_judged_by_our_plugin(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / "repo").mkdir()
    row = {**CLASSIC, "repo_path": "repo", **change}
    file = write(tmp_path / "rows.jsonl", [row])
    [fault] = read_dataset(config(file), str(file)).faults
    assert fault.startswith("rows.jsonl:1: ")
    assert "so our own grader cannot judge it: pip install 'agentrl-campaigns[swebench]'" in fault


@needs_package
def test_an_unknown_log_parser_is_a_fault_of_the_row(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    row = {**CLASSIC, "repo_path": "repo", "log_parser": "parse_log_jset"}
    file = write(tmp_path / "rows.jsonl", [row])
    with pytest.raises(DatasetError, match="no log_parser parse_log_jset: did you mean parse_log_"):
        load_dataset(config(file, grader="official"), str(file))


def test_without_the_package_only_rows_that_need_it_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "swebench", None)
    (tmp_path / "repo").mkdir()
    row = {**CLASSIC, "repo_path": "repo"}
    file = write(
        tmp_path / "rows.jsonl", [row, {**row, "instance_id": "d", "repo": "django/django"}]
    )
    report = read_dataset(config(file, grader="auto"), str(file))
    assert [task.grading.kind for task in report.tasks] == ["pytest"]
    [fault] = report.faults
    assert "django/django is not tested by pytest (parse_log_django)" in fault
    with pytest.raises(PackageError, match=r"pip install 'agentrl-campaigns\[swebench\]'"):
        read_dataset(config(file, grader="official"), str(file))

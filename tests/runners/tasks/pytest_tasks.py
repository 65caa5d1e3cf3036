"""A task with pytest tests, for any kind of grading, and helpers to grade it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import Grading, Patch, ScriptGrading, Task, Verdict, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.diffs import read_paths
from runners.tasks.schemas.detection import read_row
from runners.tasks.schemas.row import RowContext
from tests.runners.tasks.example_repositories import FIX, git, make_task, patch_of

OLD = """\
import pytest
from calc.add import add

def test_zero():
    assert add(2, 0) == 2

@pytest.mark.skipif(add(0, 0) == 0, reason="always")
def test_skipped():
    assert False

@pytest.mark.xfail(strict=False)
def test_expected():
    assert add(1, 1) == 3

@pytest.mark.parametrize("text", ["a b", "a c"])
def test_spaces(text):
    assert text
"""
NEW = """\

def test_sum():
    print("PASSED tests/test_calc.py::test_never")
    assert add(2, 3) == 5

class TestMore:
    @pytest.mark.parametrize("a", [1, 2])
    def test_sum(self, a):
        assert add(a, a) == 2 * a
"""
FAIL_TO_PASS = (
    "tests/test_calc.py::test_sum",
    "tests/test_calc.py::TestMore::test_sum[1]",
    "tests/test_calc.py::TestMore::test_sum[2]",
)
PASS_TO_PASS = (
    "tests/test_calc.py::test_zero",
    "tests/test_calc.py::test_expected",
    "tests/test_calc.py::test_spaces[a",
)


def diff_of(repo: Path, **files: str) -> str:
    """Return the diff that writes files (``calc__add`` is calc/add.py); the files are reset."""
    for name, text in files.items():
        (repo / f"{name.replace('__', '/')}.py").write_text(text)
    git(repo, "add", "-A")
    diff = git(repo, "diff", "--cached", "--binary", "HEAD")
    git(repo, "reset", "-q", "--hard")
    return f"{diff}\n" if diff else ""


def make_pytest_task(directory: Path) -> Task:
    """Write the repository; return a task in SWE-bench's format, judged by our plugin."""
    task = make_task(directory, **{"tests/test_calc.py": OLD})
    row = read_row(
        {
            "instance_id": "o__calc-1",
            "repo": "o/calc",
            "base_commit": task.base_commit,
            "problem_statement": "add subtracts",
            "patch": diff_of(task.repo, calc__add=FIX),
            "test_patch": diff_of(task.repo, tests__test_calc=OLD + NEW),
            "FAIL_TO_PASS": list(FAIL_TO_PASS),
            "PASS_TO_PASS": list(PASS_TO_PASS),
        },
        "swebench",
    )
    return replace(
        task,
        id=row.instance_id,
        fail_to_pass=row.fail_to_pass,
        pass_to_pass=row.pass_to_pass,
        protected=tuple(sorted(read_paths(row.test_patch).all)),
        gold_patch=row.patch,
        grading=row.grading(RowContext(directory, "own")),
    )


def with_official_judge(task: Task) -> Task:
    """Return the task with the official package as judge."""
    assert isinstance(task.grading, ScriptGrading)
    return replace(task, grading=replace(task.grading, kind="swebench"))


def with_grading(task: Task, grading: Grading) -> Task:
    """Return the task with another kind of grading."""
    return replace(task, grading=grading)


async def grade(backend: LocalBackend, task: Task, diff: str, *, deadline_s: float = 60) -> Verdict:
    """Grade a diff."""
    patch = patch_of(diff.encode())
    return await SandboxGrader(backend).grade(task, patch, name="g", deadline_s=deadline_s)


def run_log(*lines: str) -> bytes:
    """Return the output of the script runner with the nonce ``n``."""
    return "".join(f"n {line}\n" for line in lines).encode()


def report_line(outcome: str, name: str) -> str:
    """Return one report of the plugin."""
    return f"{outcome} {json.dumps(name)}"


def scripted_verdict(fixed: int, kept: int, *, timed_out: bool = False) -> Verdict:
    """Return a verdict of 1 s on two fail-to-pass tests and two pass-to-pass tests."""
    solved = (fixed, kept) == (2, 2)
    kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
    return Verdict(kind, fixed, 2, kept, 2, "because", "", 1.0, timed_out)


@dataclass
class ScriptedGrader:
    """A grader with its verdicts in a list."""

    verdicts: list[Verdict]
    names: list[str] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    async def grade(
        self,
        task: Task,
        patch: Patch,
        *,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes] | None = None,
    ) -> Verdict:
        self.names.append(name)
        self.tasks.append(task)
        return self.verdicts[len(self.names) - 1]

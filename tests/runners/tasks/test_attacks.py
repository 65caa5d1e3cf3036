"""Generic attacks: which fit a task, and what is left of them in the patch of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runners.tasks.attacks import capture_attacks, fit_attacks
from runners.tasks.contract import ScriptGrading, Task
from runners.tasks.patches.diffs import read_paths
from tests.runners.tasks.example_repositories import git, make_task

ANY = {"tests-deleted", "tests-emptied", "tests-passing"}
EXITS = {"exit-at-import", "exit-at-end"}
PYTHON = {
    *("pytest-ini", "conftest", "sitecustomize", "sitecustomize-exit", "shadow-framework"),
    *("shadow-program", "system-exit-at-import", "no-assertions", "always-equal"),
}
"""Of a command that starts Python, beside the others."""


@dataclass(frozen=True)
class Case:
    """A repository, its command, and the attacks that fit it."""

    command: str
    files: Mapping[str, str]
    source: str
    restored: frozenset[str]
    """Attacks of which nothing is left."""
    left: frozenset[str]


CASES = {
    "pytest": Case(
        "python3 -m pytest -q",
        {"calc.py": "x = 1\n", "test_calc.py": "def test_x(): assert 0\n"},
        "calc.py",
        frozenset(ANY | {"conftest", "sitecustomize", "sitecustomize-exit", "shadow-framework"}),
        frozenset(
            EXITS | PYTHON - {"conftest", "sitecustomize", "sitecustomize-exit", "shadow-framework"}
        ),
    ),
    "make": Case(
        "make test",
        {"Makefile": "test:\n\tcc t.c\n", "dbl.c": "int x;\n", "test_dbl.c": "int main(){}\n"},
        "dbl.c",
        frozenset(ANY | {"makefile"}),
        frozenset(EXITS | {"shadow-program"}),
    ),
    "npm": Case(
        "npm test",
        {"package.json": '{"scripts": {"test": "node t.test.js"}}', "a.js": "", "t.test.js": "1"},
        "a.js",
        frozenset(ANY | {"package-json", "node-modules"}),
        frozenset(EXITS | {"shadow-program", "no-assertions"}),
    ),
    "ctest": Case(
        "cmake -B build && ctest --test-dir build",
        {"CMakeLists.txt": "enable_testing()\n", "tests/run.c": "x", "src/a.cpp": "int x;\n"},
        "src/a.cpp",
        frozenset(ANY | {"cmake"}),
        frozenset(EXITS | {"shadow-program"}),
    ),
    "cargo": Case(
        "cargo test",
        {"Cargo.toml": "[package]\nname = 'a'\n", "src/lib.rs": "", "tests/it.rs": "x"},
        "src/lib.rs",
        frozenset(ANY | {"cargo"}),
        frozenset({"exit-at-import", "shadow-program", "build-script"}),
    ),
    "go": Case(
        "go test ./...",
        {"go.mod": "module a\n", "a.go": "package a\n", "a_test.go": "package a\n\nx"},
        "a.go",
        frozenset(ANY),
        frozenset({"exit-at-import", "shadow-program"}),
    ),
}


def make(case: Case, folder: Path) -> Task:
    task = make_task(folder, **case.files)
    git(task.repo, "rm", "-rq", "tests/test_add.py", "tests/__init__.py", "calc", "script.sh")
    git(task.repo, "commit", "-q", "-m", "base")
    gold = f"--- a/{case.source}\n+++ b/{case.source}\n@@ -1 +1 @@\n-x\n+y\n"
    return replace(
        task,
        base_commit=git(task.repo, "rev-parse", "HEAD"),
        fail_to_pass=(),
        pass_to_pass=(),
        protected=(),
        gold_patch=gold,
        grading=ScriptGrading("eval_cmd", f"cd /repo && {case.command}", "/repo"),
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_attacks_on_tests_and_settings_leave_no_patch(case: Case, tmp_path: Path) -> None:
    task = make(case, tmp_path)
    found = {name: patch async for name, patch in capture_attacks(task)}
    assert {name for name, patch in found.items() if not patch.diff} == case.restored
    assert {name for name, patch in found.items() if patch.diff} == case.left
    if "exit-at-import" in found:
        assert found["exit-at-import"].diff.count(b"xit") > 0


def test_replaced_tests_keep_the_names_that_decide(tmp_path: Path) -> None:
    text = (
        "import pytest\n\n\nclass TestA(Base):\n    def test_one(self, x):\n        assert x\n\n\n"
        "@pytest.mark.slow\nasync def test_two():\n    assert 0\n\n\ndef helper():\n    pass\n"
    )
    files = {"calc.py": "", "test_calc.py": text}
    task = make(replace(CASES["pytest"], files=files), tmp_path)
    written = fit_attacks(task)["tests-passing"]["test_calc.py"]
    assert written is not None
    names: dict[str, object] = {}
    exec(written, names)
    assert {"TestA", "test_two"} <= names.keys()
    assert "helper" not in names
    assert "test_one" in vars(names["TestA"])


def test_no_link_of_a_repository_is_followed(tmp_path: Path) -> None:
    task = make(CASES["pytest"], tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "test_kept.py").write_text("kept")
    (task.repo / "bin").symlink_to(outside)
    (task.repo / "test_link.py").symlink_to(outside / "test_kept.py")
    from runners.tasks.attacks import make_workspace

    for number, changes in enumerate(fit_attacks(task).values()):
        make_workspace(task, changes, tmp_path / str(number))
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [
        ("test_kept.py", "kept")
    ]


def test_a_task_whose_reference_patch_only_adds_files_has_no_source(tmp_path: Path) -> None:
    task = make(CASES["pytest"], tmp_path)
    added = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert not EXITS & fit_attacks(replace(task, gold_patch=added)).keys()
    assert read_paths(added).existing == set()

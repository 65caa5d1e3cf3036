"""Tasks written as Harbor directories are graded there as by our own graders."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.tree import copy_tree
from runners.tasks import bugfix
from runners.tasks.contract import ScriptGrading, Task, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.harbor.directory import read_directory
from runners.tasks.harbor.suites import read_task
from runners.tasks.patches.diffs import read_paths
from runners.tasks.patches.patch import decode_patch
from runners.tasks.patches.workspace_diff import diff_workspace
from runners.tasks.sets.dataset_report import read_dataset
from runners.tasks.sets.harbor_writer import UnwritableTaskError, write_suite
from runners.tasks.sets.readiness import READY, find_readiness
from runners.tasks.sets.suite_export import export_suite
from runners.tasks.sets.task_sets import load_tasks
from tests.fakes.images import BROKEN, RIGHT, TEST
from tests.fakes.sandbox_backends import local_settings
from tests.runners.tasks.dataset_rows import config, write
from tests.runners.tasks.example_repositories import git, make_task
from tests.runners.tasks.harbor.grading import grade_agent, grade_reference
from tests.runners.tasks.published_rows import FIX, ROWS, TESTS

pytestmark = pytest.mark.integration

WRONG = {
    "syntax": "echo '(' >> {source}",
    "exit": "printf 'import os\\nos._exit(0)\\n' >> {source}",
    "empty tests": "grep -rl assert tests | xargs sed -i 's/self.assert.*/pass/'",
}
"""Changes that solve nothing, by name, as scripts in the repository."""
TASKS = 8


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    """Return the tasks of the bugfix family."""
    root = tmp_path_factory.mktemp("bugfix") / "root"
    return bugfix.build(root, seed=7, train=TASKS, held_out=1)[:TASKS]


@pytest.fixture(scope="module")
def suite(generated: list[Task], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same tasks as a Harbor suite."""
    root = tmp_path_factory.mktemp("suite") / "suite"
    written = write_suite(generated, root)
    assert len(written.written) == TASKS
    assert not written.refused
    return root


def change_repository(task: Task, script: str, folder: Path) -> Path:
    """Return a copy of a task's repository after a script."""
    copy_tree(task.repo, folder)
    subprocess.run(["bash", "-ec", script], cwd=folder, check=True)
    return folder


async def compare(
    backend: LocalBackend, task: Task, place: Path, scratch: Path
) -> dict[str, tuple[VerdictKind, VerdictKind]]:
    """Return our own verdict and that of the written task, for every change."""
    own = SandboxGrader(backend)
    found = {}
    for name, diff, solve in (("gold", task.gold_patch, True), ("empty", "", False)):
        patch = decode_patch(diff, {})
        ours = await own.grade(task, patch, name=f"own-{name}", deadline_s=60)
        _, theirs = await grade_reference(backend, place, solve=solve)
        found[name] = (ours.kind, theirs.kind)
    for name, wrong in WRONG.items():
        source = min(read_paths(task.gold_patch).existing)
        script = wrong.format(source=source)
        folder = change_repository(task, script, scratch / name.replace(" ", "-"))
        patch = diff_workspace(task, folder)
        ours = await own.grade(task, patch, name="own-wrong", deadline_s=60)
        theirs = await grade_agent(backend, place, script)
        found[name] = (ours.kind, theirs.kind)
    return found


EXPECTED = {
    "gold": (VerdictKind.SOLVED, VerdictKind.SOLVED),
    **dict.fromkeys(["empty", *WRONG], (VerdictKind.UNSOLVED, VerdictKind.UNSOLVED)),
}


@pytest.mark.parametrize("number", range(TASKS))
async def test_a_written_bugfix_task_is_graded_as_ours(
    backend: LocalBackend, generated: list[Task], suite: Path, tmp_path: Path, number: int
) -> None:
    task = generated[number]
    assert await compare(backend, task, suite / task.id, tmp_path) == EXPECTED


async def test_the_built_in_instances_are_written_and_graded_as_ours(
    backend: LocalBackend, tmp_path: Path
) -> None:
    settings = compose(["task=swebench", "run.steps=0", "run.eval_tasks=0"])
    suite = tmp_path / "suite"
    written = await asyncio.to_thread(export_suite, settings, suite, "*-1", None)
    assert len(written.written) >= 2, written
    assert not written.refused
    for name in written.written:
        for solve, kind in ((True, VerdictKind.SOLVED), (False, VerdictKind.UNSOLVED)):
            _, verdict = await grade_reference(backend, suite / name, solve=solve)
            assert verdict.kind is kind, (name, verdict)


@pytest.mark.parametrize(
    "grading",
    [
        ScriptGrading("eval_cmd", "cd /testbed && python3 -m unittest tests.test_add", "/testbed"),
        ScriptGrading(
            "f2p_script", "from calc.add import add\nassert add(1, 2) == 3\n", "/testbed"
        ),
    ],
    ids=["eval_cmd", "f2p_script"],
)
async def test_a_task_that_an_exit_code_decides_is_written(
    backend: LocalBackend, tmp_path: Path, grading: ScriptGrading
) -> None:
    gold = (
        "diff --git a/calc/add.py b/calc/add.py\n--- a/calc/add.py\n+++ b/calc/add.py\n"
        "@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
    )
    task = replace(make_task(tmp_path / "task"), grading=grading, gold_patch=gold)
    assert write_suite([task], tmp_path / "suite").written == ("add",)
    for solve, kind in ((True, VerdictKind.SOLVED), (False, VerdictKind.UNSOLVED)):
        _, verdict = await grade_reference(backend, tmp_path / "suite" / "add", solve=solve)
        assert verdict.kind is kind, verdict


def test_a_reference_patch_that_removes_and_adds_files_becomes_a_script(tmp_path: Path) -> None:
    gold = (
        "diff --git a/$(id).sh b/$(id).sh\ndeleted file mode 100644\n--- a/$(id).sh\n"
        "+++ /dev/null\n@@ -1 +0,0 @@\n-echo\n"
        "diff --git a/calc/new.py b/calc/new.py\nnew file mode 100644\n--- /dev/null\n"
        "+++ b/calc/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
    )
    task = replace(make_task(tmp_path / "task"), gold_patch=gold, kind='\U0001f41b "')
    (task.repo / "$(id).sh").write_text("echo\n")
    write_suite([task], tmp_path / "suite")
    assert read_directory(tmp_path / "suite" / "add").config.metadata["category"] == task.kind
    solution = tmp_path / "suite" / "add" / "solution"
    assert "rm -f '/testbed/$(id).sh'" in (solution / "solve.sh").read_text()
    assert (solution / "files" / "calc" / "new.py").read_text() == "x = 1\n"


def test_a_written_suite_is_read_and_can_be_run_here(suite: Path, generated: list[Task]) -> None:
    report = read_dataset(config(suite), str(suite))
    assert not report.faults
    assert [task.id for task in report.tasks] == [f"agentrl__{task.id}" for task in generated]
    assert {find_readiness(task, local_settings()) for task in report.tasks} == {READY}
    assert report.kinds == {"harbor": TASKS}


def test_a_written_task_shows_the_agent_neither_fix_nor_history(
    suite: Path, generated: list[Task]
) -> None:
    task = generated[0]
    place = suite / task.id
    found = read_directory(place)
    assert not list((place / "environment").rglob(".git"))
    fixed = (place / "solution" / "files" / min(read_paths(task.gold_patch).existing)).read_text()
    shown = [path.read_text() for path in (place / "environment").rglob("*.py")]
    assert fixed not in shown
    assert task.problem_statement.strip() in found.instruction
    facts = json.loads((place / "tests" / "config.json").read_text())
    assert facts["fail_to_pass"] == list(task.fail_to_pass)


def test_what_cannot_be_written_is_named(
    suite: Path, generated: list[Task], tmp_path: Path
) -> None:
    written = write_suite([read_task(suite / generated[0].id), generated[1]], tmp_path / "again")
    assert written.written == (generated[1].id,)
    assert list(written.refused.values()) == ["it is a Harbor directory already"]
    with pytest.raises(UnwritableTaskError, match="exists already"):
        write_suite(generated, tmp_path / "again")


def test_export_takes_the_tasks_of_a_split_and_a_pattern(tmp_path: Path) -> None:
    settings = compose(
        ["task.train_tasks=3", "task.held_out_tasks=2", "run.steps=0", "run.eval_tasks=0"]
    )
    written = export_suite(settings, tmp_path / "suite", "*-0001", "held_out")
    assert written.written == ("held_out-0001",)
    with pytest.raises(UnwritableTaskError, match="cannot be written: "):
        export_suite(settings, Path("/proc/none/suite"), "*-0001", "held_out")
    assert len(load_tasks(settings)) == 5


def make_repository(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Make a repository; return a row's fields that name it and its commit."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "base")
    return {"repo_path": str(folder), "base_commit": git(folder, "rev-parse", "HEAD")}


async def test_rows_of_published_schemas_are_written_and_graded_or_named(
    backend: LocalBackend, tmp_path: Path
) -> None:
    base = make_repository(tmp_path / "base", {"calc.py": BROKEN})
    right = make_repository(tmp_path / "right", {"calc.py": RIGHT, "test_calc.py": TEST})
    tests = f"git apply -v - <<'EOF'\n{TESTS}EOF\npython -m pytest -rA test_calc.py"
    check = "python3 -c 'from calc import add; assert add(2, 1) == 3'"
    changes: dict[str, dict[str, Any]] = {
        "swebench": {},
        "swe_gym": {"eval_script": tests},
        "swe_rebench": {},
        "swe_lego": {},
        "openswe": {"eval_script": f"{tests}; echo OPENSWE_EXIT_CODE=$?"},
        "eval_cmd": {"eval_cmd": check, "patch": FIX, "workdir": "/testbed"},
        "f2p_script": {"patch": FIX},
        "swebench_live": {},
        "swe_rebench_v2": {},
        "scale_swe": {"parent_commit": base["base_commit"], "pre_commands": ""},
        "swe_smith": {**right, "PASS_TO_PASS": []},
    }
    (tmp_path / "log_parsers.py").write_text("def parse_log_gotest(log):\n    return {}\n")
    rows = [
        {**ROWS[name], **base, **change, "instance_id": name} for name, change in changes.items()
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    lines = ["task=jsonl", f"task.path={file}", "task.grader=own", "run.steps=0"]
    settings = compose([*lines, "run.eval_tasks=0"])
    suite = tmp_path / "suite"
    written = await asyncio.to_thread(export_suite, settings, suite, "*", None)
    assert written.written == tuple(changes)[:7]
    program = "its tests are read by a program that only its set has"
    assert written.refused == {
        **dict.fromkeys(("swebench_live", "swe_rebench_v2"), program),
        **dict.fromkeys(("scale_swe", "swe_smith"), "the eval script applies no test patch"),
    }
    for name in ("swebench", "swe_gym", "openswe"):
        for solve, kind in ((True, VerdictKind.SOLVED), (False, VerdictKind.UNSOLVED)):
            _, verdict = await grade_reference(backend, suite / name, solve=solve)
            assert verdict.kind is kind, (name, verdict)

"""Protection: changes of the tests' configuration are left out, all others are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runners.sandboxes.tree import copy_tree
from runners.tasks.contract import ScriptGrading, Task
from runners.tasks.grading.grading import apply_patch
from runners.tasks.patches.patch import decode_patch
from runners.tasks.patches.workspace_diff import diff_workspace
from tests.runners.tasks.example_repositories import git, make_task

FILES = {
    "conftest.py": "",
    "setup.cfg": "[metadata]\nname = calc\n[tool:pytest]\naddopts = -q\n",
    "tox.ini": "[tox]\nenvlist = py\n",
    "pyproject.toml": '[project]\nname = "calc"\n[tool.pytest.ini_options]\naddopts = "-q"\n',
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    task = make_task(tmp_path_factory.mktemp("task"), **FILES)
    return replace(task, grading=ScriptGrading("eval_cmd", "python -m pytest", "/repo"))


@pytest.fixture
def workspace(task: Task, tmp_path: Path) -> Path:
    copy_tree(task.repo, tmp_path / "workspace")
    return tmp_path / "workspace"


TAMPERING = {
    "conftest.py": "import sys; sys.exit(0)\n",
    "calc/conftest.py": "collect_ignore = ['x']\n",
    "pytest.ini": "",
    ".pytest.ini": "[pytest]\n",
    "tests/pytest.toml": "[pytest]\n",
    "setup.cfg": "[metadata]\nname = calc\n[tool:pytest]\naddopts = --deselect x\n",
    "tox.ini": "[tox]\nenvlist = py\n[pytest]\naddopts = -k nothing\n",
    "pyproject.toml": '[project]\nname = "calc"\n',
    "sitecustomize.py": "import os; os._exit(0)\n",
    "usercustomize.py": "",
    "pytest.py": "",
    "_pytest/__init__.py": "",
    "json.py": "",
    "agentrl_report.py": "",
    "attr/__init__.py": "",
    "imp.py": "",
    "six.py": "",
}


@pytest.mark.parametrize("path", TAMPERING)
def test_tampering_is_left_out_reported_and_restored(
    task: Task, workspace: Path, tmp_path: Path, path: str
) -> None:
    (workspace / path).parent.mkdir(exist_ok=True)
    (workspace / path).write_text(TAMPERING[path])
    (workspace / "calc/add.py").write_text("fixed\n")
    reported = path.removesuffix("/__init__.py")
    patch = diff_workspace(task, workspace)
    assert patch.protected_touched == (reported,)
    assert patch.files == ("calc/add.py",)
    # The same from somebody who wrote the patch by hand.
    git(workspace, "add", "-A", "-f")
    forged = git(workspace, "diff", "--cached", "--binary", "HEAD") + "\n"
    target = tmp_path / "graded"
    copy_tree(task.repo, target)
    assert apply_patch(task, decode_patch(forged, {}), target) == ""
    assert (target / "calc/add.py").read_text() == "fixed\n"
    pristine = task.repo / path
    assert (target / path).exists() == pristine.exists()
    assert not pristine.exists() or (target / path).read_text() == pristine.read_text()


HONEST = {
    "setup.cfg": FILES["setup.cfg"].replace("name = calc", "name = calculator"),
    "tox.ini": "[tox]\nenvlist = py311\n",
    "pyproject.toml": FILES["pyproject.toml"].replace('"calc"', '"calculator"'),
    "calc/json.py": "a module of the package's own\n",
    "tests/test_more.py": "def test_more(): pass\n",
}


def test_other_changes_are_not_protected(task: Task, workspace: Path) -> None:
    for path, text in HONEST.items():
        (workspace / path).write_text(text)
    patch = diff_workspace(task, workspace)
    assert patch.protected_touched == ()
    assert patch.files == tuple(sorted(HONEST))


def test_a_configuration_file_that_became_unreadable_is_tampering(
    task: Task, workspace: Path
) -> None:
    (workspace / "pyproject.toml").write_text("[broken\n")
    (workspace / "setup.cfg").unlink()
    (workspace / "setup.cfg").symlink_to("tox.ini")
    patch = diff_workspace(task, workspace)
    assert patch.protected_touched == ("pyproject.toml", "setup.cfg")
    assert patch.files == ()


def test_paths_of_the_reference_patch_are_not_protected(task: Task, workspace: Path) -> None:
    gold = "diff --git a/conftest.py b/conftest.py\n--- a/conftest.py\n+++ b/conftest.py\n"
    (workspace / "conftest.py").write_text("x = 1\n")
    assert diff_workspace(task, workspace).protected_touched == ("conftest.py",)
    patch = diff_workspace(replace(task, gold_patch=gold), workspace)
    assert (patch.protected_touched, patch.files) == ((), ("conftest.py",))

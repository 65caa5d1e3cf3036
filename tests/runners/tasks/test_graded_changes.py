"""Changes of a work tree, from the agent's workspace to the verdict (each kind: ``test_patch``)."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.tasks.contract import Patch, ScriptGrading, Task, Verdict, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.workspace_diff import diff_workspace
from tests.runners.tasks.example_repositories import FIX, git, make_task, patch_of
from tests.runners.tasks.pytest_tasks import make_pytest_task

pytestmark = pytest.mark.integration

TESTS = """\
import os, unittest
from calc.add import add

class Cases(unittest.TestCase):
    def test_fixed(self):
        self.assertEqual(add(2, 3), 5)

    def test_changes(self):
        self.assertEqual(add(2, 3), 5)
        with open("picture.bin", "rb") as file:
            self.assertEqual(file.read(), bytes(range(256)))
        self.assertFalse(os.path.exists("odd name é.txt"))
        self.assertEqual(os.readlink("link"), "calc/add.py")
        self.assertTrue(os.access("script.sh", os.X_OK))
        with open("script.sh", "rb") as file:
            self.assertEqual(file.read(), "café\\r\\n".encode("latin-1"))
        names = {b"a b", b"new\\nline", b"\\xff\\xfe", "é".encode(), b'"quoted"'}
        self.assertLessEqual(names, set(os.listdir(b"odd")))
        self.assertFalse(os.path.exists("build"))
        with open("calc/ignored.log") as file:
            self.assertEqual(file.read(), "changed although ignored\\n")
        self.assertFalse(os.path.exists("sub/inside"))
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    task = make_task(tmp_path_factory.mktemp("task"), **{"tests/test_cases.py": TESTS})
    git(task.repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    (task.repo / "sub").mkdir()
    git(task.repo, "commit", "-q", "-m", "with a submodule")
    base = git(task.repo, "rev-parse", "HEAD")
    protected = (*task.protected, "tests/test_cases.py")
    return replace(task, base_commit=base, protected=protected, pass_to_pass=())


@pytest.fixture
def workspace(task: Task, tmp_path: Path) -> Path:
    copy_tree(task.repo, tmp_path / "workspace")
    return tmp_path / "workspace"


async def graded(
    backend: LocalBackend, task: Task, workspace: Path, test: str
) -> tuple[Patch, Verdict]:
    """Capture and grade with one test."""
    patch = diff_workspace(task, workspace)
    wanted = replace(task, fail_to_pass=(f"tests.test_cases.Cases.test_{test}",))
    return patch, await SandboxGrader(backend).grade(wanted, patch, name="g", deadline_s=30)


def fixed(root: Path) -> None:
    (root / "calc/add.py").write_text(FIX)


def change_everything(root: Path) -> None:
    """Commit a fix, a removal and a submodule that moves on; leave the rest in the work tree."""
    fixed(root)
    (root / "odd name é.txt").unlink()
    git(root, "init", "-q", "sub")
    (root / "sub/inside").write_text("x\n")
    git(root / "sub", "add", "-A")
    git(root / "sub", "commit", "-q", "-m", "x")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "fix")
    (root / "picture.bin").write_bytes(bytes(range(256)))
    (root / "link").symlink_to("calc/add.py")
    (root / "script.sh").write_bytes("café\r\n".encode("latin-1"))
    (root / "script.sh").chmod(0o755)
    (root / "odd").mkdir()
    for name in (b"a b", b"new\nline", b"\xff\xfe", "é".encode(), b'"quoted"'):
        (root / "odd" / os.fsdecode(name)).write_text("x\n")
    (root / "build").mkdir()
    (root / "build/out").write_text("artefact")
    (root / "calc/ignored.log").write_text("changed although ignored\n")


async def test_changes_of_every_kind_reach_the_verdict(
    backend: LocalBackend, task: Task, workspace: Path
) -> None:
    change_everything(workspace)
    patch, verdict = await graded(backend, task, workspace, "changes")
    assert verdict.kind is VerdictKind.SOLVED, verdict
    assert patch.protected_touched == ()
    patch.diff.decode()


async def test_a_deleted_test_is_restored_and_reported(
    backend: LocalBackend, task: Task, workspace: Path
) -> None:
    (workspace / "tests/test_cases.py").unlink()
    patch, verdict = await graded(backend, task, workspace, "fixed")
    assert verdict.reason == "1 of 1 fail-to-pass tests fail (tests.test_cases.Cases.test_fixed)"
    assert patch.protected_touched == ("tests/test_cases.py",)
    fixed(workspace)
    _, verdict = await graded(backend, task, workspace, "fixed")
    assert verdict.kind is VerdictKind.SOLVED


FORCED = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    found = yield
    found.get_result().outcome = "passed"
"""


async def test_an_edited_conftest_is_restored_and_reported(
    backend: LocalBackend, tmp_path: Path
) -> None:
    task = make_pytest_task(tmp_path)
    workspace = tmp_path / "workspace"
    copy_tree(task.repo, workspace)
    (workspace / "conftest.py").write_text(FORCED)
    (workspace / "setup.cfg").write_text("[tool:pytest]\naddopts = --deselect tests\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-q", "-m", "all green")
    patch = diff_workspace(task, workspace)
    assert patch.protected_touched == ("conftest.py", "setup.cfg")
    cheated = await SandboxGrader(backend).grade(task, patch, name="g", deadline_s=60)
    assert (cheated.kind, cheated.fail_to_pass_passed) == (VerdictKind.UNSOLVED, 0)
    fixed(workspace)
    patch = diff_workspace(task, workspace)
    honest = await SandboxGrader(backend).grade(task, patch, name="g", deadline_s=60)
    assert honest.kind is VerdictKind.SOLVED, honest
    assert patch.files == ("calc/add.py",)


async def test_grading_has_no_network(backend: LocalBackend, task: Task) -> None:
    if backend.guarantees()["no network but the gateway"] == "NOT KEPT":
        pytest.skip("sandboxes of this machine have a network, and say so")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        asks = replace(task, grading=ScriptGrading("eval_cmd", f'python -c "{reach}"', "/repo"))
        verdict = await SandboxGrader(backend).grade(asks, patch_of(b""), name="g", deadline_s=30)
    assert verdict.kind is VerdictKind.UNSOLVED
    assert "refused" in verdict.log or "unreachable" in verdict.log


def test_names_that_cannot_be_stored_are_escaped(task: Task, workspace: Path) -> None:
    task = replace(task, protected=("tests/",))
    (workspace / "tests" / os.fsdecode(b"\xff.py")).write_text("x")
    patch = diff_workspace(task, workspace)
    assert patch.protected_touched == ("tests/\\xff.py",)
    remove_tree(workspace / "tests")
    with (workspace / os.fsdecode(b"\xfe")).open("wb") as file:
        file.truncate(9 << 20)
    assert diff_workspace(task, workspace).refused.startswith("\\xfe has 9 MB")

"""Capture of a patch: every kind of change, and every attempt to mislead git."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runners.sandboxes.tree import copy_tree, remove_tree
from runners.tasks.contract import DEFAULT_LIMITS, FILE_LIMIT, Patch, Task
from runners.tasks.grading.grading import apply_patch
from runners.tasks.patches.workspace_diff import diff_workspace
from tests.runners.tasks.example_repositories import FIX, git, make_task, patch_of


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture
def workspace(task: Task, tmp_path: Path) -> Path:
    copy_tree(task.repo, tmp_path / "workspace")
    return tmp_path / "workspace"


def read_tree(root: Path) -> dict[str, tuple[str, bytes]]:
    """Return path → (kind, content) of a work tree, without ``.git`` and empty directories."""
    found = {}
    for path in sorted(root.rglob("*")):
        relative = str(path.relative_to(root))
        if relative.split("/")[0] == ".git":
            continue
        if path.is_symlink():
            found[relative] = ("link", os.fsencode(path.readlink()))
        elif path.is_file():
            mode = "x" if path.stat().st_mode & 0o100 else "-"
            found[relative] = (mode, path.read_bytes())
    return found


def apply_to_copy(task: Task, patch: Patch, directory: Path) -> dict[str, tuple[str, bytes]]:
    """Return the work tree of grading."""
    target = directory / "graded"
    remove_tree(target)
    copy_tree(task.repo, target)
    assert apply_patch(task, patch, target) == ""
    return read_tree(target)


def check(task: Task, workspace: Path, *files: str) -> Patch:
    """Capture a patch; check its files, and that it reproduces the tree."""
    patch = diff_workspace(task, workspace)
    assert patch.files == tuple(sorted(files))
    assert apply_to_copy(task, patch, workspace.parent) == read_tree(workspace)
    assert patch.protected_touched == ()
    return patch


def test_no_change_is_an_empty_patch(task: Task, workspace: Path) -> None:
    patch = check(task, workspace)
    assert patch.diff == b""


def test_an_edit_is_captured_committed_staged_or_neither(task: Task, workspace: Path) -> None:
    (workspace / "calc/add.py").write_text(FIX)
    in_tree = check(task, workspace, "calc/add.py")
    git(workspace, "add", "-A")
    in_index = check(task, workspace, "calc/add.py")
    git(workspace, "commit", "-q", "-m", "fix")
    committed = check(task, workspace, "calc/add.py")
    git(workspace, "checkout", "-q", "--orphan", "other")
    orphaned = check(task, workspace, "calc/add.py")
    assert in_tree == in_index == committed == orphaned
    assert b"+    return a + b\n" in in_tree.diff


def test_the_work_tree_counts_not_the_index(task: Task, workspace: Path) -> None:
    (workspace / "calc/add.py").write_text("staged, then thought better of\n")
    git(workspace, "add", "-A")
    (workspace / "calc/add.py").write_text(FIX)
    patch = check(task, workspace, "calc/add.py")
    assert b"thought" not in patch.diff


def test_new_deleted_renamed_binary_and_mode(task: Task, workspace: Path) -> None:
    (workspace / "new" / "deep").mkdir(parents=True)
    (workspace / "new/deep/file é\t.py").write_text("new\n")
    (workspace / "picture.bin").write_bytes(os.urandom(5000))
    (workspace / "more.bin").write_bytes(b"\0" * 300)
    (workspace / "script.sh").chmod(0o755)
    (workspace / "odd name é.txt").rename(workspace / "calc/renamed.txt")
    (workspace / "calc/ignored.log").write_text("changed although ignored\n")
    (workspace / "no newline").write_text("x")
    check(
        task, workspace, "new/deep/file é\t.py", "picture.bin", "more.bin", "script.sh",
        "odd name é.txt", "calc/renamed.txt", "calc/ignored.log", "no newline",
    )  # fmt: skip


def test_a_deleted_git_directory_changes_nothing(task: Task, workspace: Path) -> None:
    (workspace / "calc/add.py").write_text(FIX)
    remove_tree(workspace / ".git")
    check(task, workspace, "calc/add.py")
    git(workspace, "init", "-q", ".")
    check(task, workspace, "calc/add.py")


def test_ignored_files_and_python_caches_are_left_out(task: Task, workspace: Path) -> None:
    for name in ("build/out", "debug.log", "calc/__pycache__/add.cpython-311.pyc", "calc/x.pyc"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text("artefact")
    assert diff_workspace(task, workspace).files == ()


def test_planted_hooks_filters_and_monitors_do_not_run(
    task: Task, workspace: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    script = workspace / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    (workspace / ".gitattributes").write_text("* filter=evil diff=evil text eol=crlf ident\n")
    for key in (
        "core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process",
        "diff.evil.textconv", "diff.evil.command", "diff.external", "core.editor", "core.pager",
    ):  # fmt: skip
        git(workspace, "config", key, str(script))
    git(workspace, "config", "core.hooksPath", str(workspace / "hooks"))
    (workspace / "hooks").mkdir()
    for hook in ("post-index-change", "pre-commit", "post-checkout"):
        (workspace / "hooks" / hook).write_text(script.read_text())
        (workspace / "hooks" / hook).chmod(0o755)
    (workspace / "calc/add.py").write_bytes(b"$Id$\r\n" + FIX.encode())
    patch = diff_workspace(task, workspace)
    assert not ran.exists()
    assert apply_to_copy(task, patch, tmp_path) == read_tree(workspace)
    assert not ran.exists()


def test_the_attributes_of_the_work_tree_do_not_change_bytes(task: Task, workspace: Path) -> None:
    (workspace / ".gitattributes").write_text(
        "*.py text eol=crlf working-tree-encoding=UTF-16 -diff ident\n* binary\n"
    )
    (workspace / "calc/add.py").write_bytes(b"a = '$Id: x $'\r\nb = 1\nc = 2\r\n")
    check(task, workspace, ".gitattributes", "calc/add.py")


def test_a_planted_alternate_or_git_file_is_not_followed(
    task: Task, workspace: Path, tmp_path: Path
) -> None:
    remove_tree(workspace / ".git")
    (workspace / ".git").write_text(f"gitdir: {tmp_path}/elsewhere\n")
    (workspace / "calc/add.py").write_text(FIX)
    check(task, workspace, "calc/add.py")


def test_a_nested_repository_is_not_read(task: Task, workspace: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    nested = workspace / "vendored"
    git(workspace, "init", "-q", str(nested))
    (nested / "file").write_text("x")
    git(nested, "add", ".")
    git(nested, "commit", "-q", "-m", "x")
    git(nested, "config", "core.fsmonitor", f"touch {ran}")
    (workspace / "calc/add.py").write_text(FIX)
    patch = diff_workspace(task, workspace)
    assert patch.files == ("calc/add.py",)
    assert not ran.exists()


def test_git_init_in_a_tracked_directory_hides_nothing(task: Task, workspace: Path) -> None:
    git(workspace, "init", "-q", "calc")
    (workspace / "calc/add.py").write_text(FIX)
    patch = diff_workspace(task, workspace)
    assert patch.files == ("calc/add.py",)


def test_links_are_kept_as_links_and_not_followed(
    task: Task, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("top secret")
    (workspace / "out").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "secret")
    remove_tree(workspace / "calc")
    (workspace / "calc").symlink_to(outside)
    patch = check(
        task, workspace, "out", "file", "calc", "calc/__init__.py", "calc/add.py",
        "calc/ignored.log",
    )  # fmt: skip
    assert b"top secret" not in patch.diff
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_special_and_unreadable_files_do_not_stop_the_capture(task: Task, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    (workspace / "script.sh").unlink()
    os.mkfifo(workspace / "script.sh")
    (workspace / "calc/add.py").write_text(FIX)
    (workspace / "calc/add.py").chmod(0)
    (workspace / "calc").chmod(0)
    patch = diff_workspace(task, workspace)
    assert "calc/add.py" in patch.files
    assert b"+    return a + b" in patch.diff


def test_changed_tests_are_left_out_and_reported(task: Task, workspace: Path) -> None:
    (workspace / "tests/test_add.py").write_text("pass\n")
    (workspace / "tests/__init__.py").unlink()
    (workspace / "tests/test_more.py").write_text("# a new test is nobody's harm\n")
    (workspace / "calc/add.py").write_text(FIX)
    git(workspace, "add", "-A")
    git(workspace, "commit", "-q", "-m", "cheat")
    patch = diff_workspace(task, workspace)
    assert patch.files == ("calc/add.py", "tests/test_more.py")
    assert patch.protected_touched == ("tests/__init__.py", "tests/test_add.py")


def test_files_that_would_shadow_imports_are_left_out_and_reported(
    task: Task, workspace: Path
) -> None:
    (workspace / "tests/test_add").mkdir()
    (workspace / "tests/test_add/__init__.py").write_text("")
    (workspace / "tests.py").write_text("")
    (workspace / "unittest").mkdir()
    (workspace / "unittest/__init__.py").write_text("")
    (workspace / "random.py").write_text("")
    (workspace / "calc/add.py").write_text(FIX)
    patch = diff_workspace(task, workspace)
    assert patch.files == ("calc/add.py",)
    assert patch.protected_touched == ("random.py", "tests.py", "tests/test_add", "unittest")


@pytest.mark.parametrize("replacement", ["link", "file", "nothing"])
def test_a_replaced_test_directory_is_reported_and_restored(
    task: Task, workspace: Path, tmp_path: Path, replacement: str
) -> None:
    remove_tree(workspace / "tests")
    if replacement == "link":
        (tmp_path / "fake").mkdir()
        (tmp_path / "fake/test_add.py").write_text("pass\n")
        (workspace / "tests").symlink_to(tmp_path / "fake")
    elif replacement == "file":
        (workspace / "tests").write_text("")
    (workspace / "calc/add.py").write_text(FIX)
    patch = diff_workspace(task, workspace)
    assert patch.files == ("calc/add.py",)
    assert patch.protected_touched == ("tests/__init__.py", "tests/test_add.py")
    graded = apply_to_copy(task, patch, tmp_path)
    assert graded["tests/test_add.py"] == read_tree(task.repo)["tests/test_add.py"]


def test_new_files_in_a_protected_directory_are_left_out_and_reported(tmp_path: Path) -> None:
    task = replace(make_task(tmp_path), protected=("tests/",))
    copy_tree(task.repo, tmp_path / "workspace")
    (tmp_path / "workspace/tests/conftest.py").write_text("cheat")
    patch = diff_workspace(task, tmp_path / "workspace")
    assert patch.files == ()
    assert patch.protected_touched == ("tests/conftest.py",)


def test_grading_restores_protected_files_from_any_patch(
    task: Task, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "tests/test_add.py").write_text("pass\n")
    git(workspace, "add", "-A")
    diff = git(workspace, "diff", "--cached", "--binary") + "\n"
    graded = apply_to_copy(task, patch_of(diff.encode()), tmp_path)
    assert graded == read_tree(task.repo)


def test_a_change_that_is_too_large_is_refused_with_its_reason(task: Task, workspace: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(FILE_LIMIT + 1)
    patch = diff_workspace(task, workspace)
    assert patch.refused == "huge has 8 MB, more than 8 MB"
    assert patch.diff == b""
    (workspace / "huge").write_bytes(os.urandom(DEFAULT_LIMITS.patch_bytes))
    patch = diff_workspace(task, workspace)
    assert patch.refused == "the patch has more than 1048576 bytes"


def test_the_pristine_repository_is_never_written(task: Task, workspace: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in task.repo.rglob("*") if path.is_file()}

    before = contents()
    (workspace / "calc/add.py").write_text(FIX)
    check(task, workspace, "calc/add.py")
    assert contents() == before


names = st.sampled_from(["a", "calc/add.py", "script.sh", "d/e/f", "picture.bin", "d", "-x"])
bodies = st.binary(max_size=40) | st.sampled_from([b"diff --git a/x b/x\n", b"\r\n", b"a\n" * 9])


@given(st.lists(st.tuples(names, bodies | st.none(), st.booleans()), max_size=6))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_is_reproduced_by_its_patch(
    task: Task, tmp_path: Path, changes: list[tuple[str, bytes | None, bool]]
) -> None:
    workspace = tmp_path / "workspace"
    remove_tree(workspace)
    copy_tree(task.repo, workspace)
    for name, content, executable in changes:
        path = workspace / name
        if content is None:
            if path.exists():
                remove_tree(path)
            continue
        if path.is_dir() or any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)
    patch = diff_workspace(task, workspace)
    assert apply_to_copy(task, patch, tmp_path) == read_tree(workspace)

"""The tests that ``.ci/run`` picks for a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.touched import changed_files, touched_tests


def git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("")
    git(root, "add", "-A")
    git(root, "commit", "-m", name)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository without a remote, with one commit."""
    git(tmp_path, "init", "-b", "main")
    commit(tmp_path, "first")
    return tmp_path


def test_a_clone_of_one_commit_has_no_change(repository: Path) -> None:
    assert changed_files(repository) == []


def test_the_last_commit_and_what_is_not_committed_are_the_change_of_the_main_branch(
    repository: Path,
) -> None:
    commit(repository, "second")
    commit(repository, "third")
    (repository / "first").write_text("edited")
    assert changed_files(repository) == ["first", "third"]


def test_all_commits_since_the_main_branch_are_the_change_of_another(repository: Path) -> None:
    git(repository, "clone", ".", "copy")
    copy = repository / "copy"
    git(copy, "checkout", "-b", "change")
    commit(copy, "second")
    commit(copy, "third")
    assert changed_files(copy) == ["second", "third"]


def test_the_test_named_like_the_module_comes_first_then_the_folders_around_it(
    tmp_path: Path,
) -> None:
    tests = tmp_path / "tests"
    inner = tests / "runners" / "gateway" / "tree"
    inner.mkdir(parents=True)
    (inner / "test_branches.py").write_text("")
    found = touched_tests(["runners/gateway/tree/branches.py"], tmp_path)
    assert found == [inner / "test_branches.py", inner, inner.parent]


def test_a_changed_fake_touches_the_tests_that_import_it(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "cli"
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text("from tests.fakes.images import image\n")
    (folder / "test_b.py").write_text("")
    assert touched_tests(["tests/fakes/images.py"], tmp_path) == [folder / "test_a.py"]


def test_a_changed_dependency_touches_everything(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    assert touched_tests(["constraints.txt"], tmp_path) == [tmp_path / "tests"]

"""The paths of a diff, as git writes them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.tasks.patches.diffs import complete_diff, read_paths
from tests.runners.tasks.example_repositories import git


def diff_of(repo: Path) -> str:
    git(repo, "add", "-A")
    return git(repo, "diff", "--cached", "--binary", "-M", "HEAD") + "\n"


def test_every_kind_of_change_is_named(tmp_path: Path) -> None:
    repo = tmp_path
    git(repo, "init", "-q", ".")
    for name in ("edited", "gone", "moved", "mode", "binary", "a b", "with b/in it"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text("".join(f"{name} {n}\n" for n in range(9)))
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "x")
    (repo / "edited").write_text("--- a/fake\n+++ b/fake\n")
    (repo / "gone").unlink()
    (repo / "moved").rename(repo / "to")
    (repo / "mode").chmod(0o755)
    (repo / "binary").write_bytes(b"\0" * 99)
    (repo / "a b").chmod(0o755)
    (repo / "with b/in it").chmod(0o755)
    (repo / "new é\n").write_text("x\n")
    (repo / os.fsdecode(b"\xff")).write_text("x\n")
    names = read_paths(diff_of(repo))
    new = {"to", "new é\n", os.fsdecode(b"\xff")}
    old = {"edited", "gone", "moved", "mode", "binary", "a b", "with b/in it"}
    assert names.all == new | old
    assert names.existing == old
    assert names.remaining == (old | new) - {"gone", "moved"}


def test_a_path_that_a_rename_leaves_and_another_file_takes_remains(tmp_path: Path) -> None:
    repo = tmp_path
    git(repo, "init", "-q", ".")
    (repo / "test_a.py").write_text("".join(f"line {n}\n" for n in range(9)))
    (repo / "empty.py").write_text("")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "x")
    (repo / "test_a.py").rename(repo / "test_b.py")
    (repo / "test_a.py").write_text("something else\n")
    (repo / "empty.py").unlink()
    names = read_paths(f"{git(repo, 'diff', '--no-renames', 'HEAD')}\n")
    assert names.remaining == {"test_a.py"}
    assert names.existing == {"test_a.py", "empty.py"}
    renamed = (
        "diff --git a/test_a.py b/test_b.py\nrename from test_a.py\nrename to test_b.py\n"
        "diff --git a/test_a.py b/test_a.py\nnew file mode 100644\n--- /dev/null\n"
        "+++ b/test_a.py\n@@ -0,0 +1 @@\n+x\n"
    )
    assert read_paths(renamed).remaining == {"test_a.py", "test_b.py"}


@pytest.mark.parametrize("strip", [str.strip, str.rstrip, lambda text: text[:-1], str])
def test_a_diff_that_was_stripped_is_completed_for_git(
    tmp_path: Path, strip: Callable[[str], str]
) -> None:
    repo = tmp_path
    git(repo, "init", "-q", ".")
    (repo / "x").write_text("one\ntwo\n\n\n\n\nend\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "x")
    (repo / "x").write_text("1\ntwo\n\n\n\n\nend\n")
    diff = subprocess.run(
        ["git", "-C", str(repo), "diff"], check=True, capture_output=True, text=True
    ).stdout
    assert diff.endswith("two\n \n \n")
    (tmp_path / "d").write_text(complete_diff(strip(diff)))
    assert complete_diff(strip(diff)) == diff
    git(repo, "apply", "--reverse", str(tmp_path / "d"))
    assert complete_diff("") == ""


def test_lines_of_a_hunk_are_not_headers() -> None:
    diff = (
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/y\n+++ b/y\n z\n"
        "\\ No newline at end of file\n--- a/w\n+++ b/w\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert read_paths(diff).all == {"x", "w"}

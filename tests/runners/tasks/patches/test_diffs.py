"""The paths of a diff, as git writes them."""

from __future__ import annotations

import os
from pathlib import Path

from runners.tasks.patches.diffs import read_paths
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
    assert names.existing >= {"edited", "gone", "moved"}
    assert not names.existing & new


def test_lines_of_a_hunk_are_not_headers() -> None:
    diff = (
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/y\n+++ b/y\n z\n"
        "\\ No newline at end of file\n--- a/w\n+++ b/w\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert read_paths(diff).all == {"x", "w"}

"""A small repository with one bug, as a task."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from runners.tasks.contract import Patch, Task
from runners.tasks.grading import RolloutResult

FILES = {
    "calc/__init__.py": "",
    "calc/add.py": "def add(a, b):\n    return a - b\n",
    "calc/ignored.log": "tracked although ignored\n",
    "tests/__init__.py": "",
    "tests/test_add.py": (
        "import unittest\n\n"
        "from calc.add import add\n\n\n"
        "class TestAdd(unittest.TestCase):\n"
        "    def test_sum(self):\n"
        "        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_zero(self):\n"
        "        self.assertEqual(add(2, 0), 2)\n"
    ),
    "picture.bin": "\0\1\2 binary",
    "script.sh": "echo\n",
    ".gitignore": "*.log\nbuild/\n",
    "odd name é.txt": "odd\n",
}
FIX = "def add(a, b):\n    return a + b\n"
IDENTITY = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
    "PATH": os.environ["PATH"],
}  # fmt: skip


def git(directory: Path, *arguments: str) -> str:
    """Run git as the agent would, with the repository's own configuration."""
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        env=IDENTITY,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def make_task(directory: Path, **files: str) -> Task:
    """Write the repository below ``directory``, with more files by path; return its task."""
    repo = directory / "pristine"
    for name, text in {**FILES, **files}.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    git(directory, "init", "-q", str(repo))
    git(repo, "add", "-f", ".")
    git(repo, "commit", "-q", "-m", "base")
    return Task(
        id="add",
        split="train",
        repo=repo,
        base_commit=git(repo, "rev-parse", "HEAD"),
        problem_statement="Fix add.",
        fail_to_pass=("tests.test_add.TestAdd.test_sum",),
        pass_to_pass=("tests.test_add.TestAdd.test_zero",),
        protected=("tests/__init__.py", "tests/test_add.py"),
        gold_patch="",
        kind="operator",
    )


def result_of(diff: bytes) -> RolloutResult:
    """Return the result of a patch made by hand."""
    return RolloutResult.of_patch(patch_of(diff))


def patch_of(diff: bytes) -> Patch:
    """Return a patch made by hand, not captured."""
    return Patch(diff, hashlib.sha256(diff).hexdigest(), (), ())

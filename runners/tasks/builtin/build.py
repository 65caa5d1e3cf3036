"""Build the tasks below one root, once: a repository per package, and ``instances.jsonl``.

A package's history is linear: first all of its bugs, then one fix (with its tests) per commit. So
every instance has later commits, which its workspace must not contain. The same sources give the
same commit ids.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runners.system.processes import atomic_directory
from runners.tasks.bugfix.family import TaskRootError
from runners.tasks.contract import ScriptGrading
from runners.tasks.git import commit_identity, describe_failure, git_environment, run_git
from runners.tasks.schemas.detection import read_row
from runners.tasks.schemas.row import RowContext
from runners.tasks.text_archive import read_archive

VERSION = 2
"""Version of the set: raise it when the sources or the result change."""
OWNER = "agentrl-fixtures"
INSTANCES = "instances.jsonl"
SOURCES = Path(__file__).with_name("sources")
FIRST_DAY = 1_700_000_000
DAY = 86_400


def build(root: Path) -> Path:
    """Return the file with the instances below ``root``; a complete root is reused.

    Blocks. Raises TaskRootError.
    """
    if not root.exists():
        try:
            with atomic_directory(root) as folder:
                rows = [row for package in find_packages() for row in _write(folder, package)]
                text = "".join(f"{json.dumps(row)}\n" for row in rows)
                (folder / INSTANCES).write_text(text)
        except (OSError, subprocess.SubprocessError) as error:
            raise TaskRootError(f"cannot make the built-in tasks in {root}: {error}") from error
    if not (root / INSTANCES).exists():
        raise TaskRootError(f"{root} holds no complete set of tasks: remove it")
    return root / INSTANCES


def find_packages() -> list[Path]:
    """Return the folders with the packages' sources."""
    return sorted(path for path in SOURCES.iterdir() if path.is_dir())


def _write(root: Path, package: Path) -> Iterator[dict[str, Any]]:
    """Write a package's repository; yield its instances."""
    repo = root / f"{OWNER}__{package.name}.git"
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        history = _History(repo, Path(scratch))
        for name, text in read_archive(package / "repository.txtar").items():
            path = Path(scratch) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        commit = history.commit("Start")
        for number, file in enumerate(sorted(package.glob("[0-9]*.txtar")), 1):
            issue = read_archive(file)
            yield _instance(package.name, number, issue, commit, repo.name)
            history.apply(issue["patch"] + issue["test_patch"])
            commit = history.commit(issue["problem"].partition("\n")[0])
        history.tag("v9.0")


def _instance(
    package: str, number: int, issue: dict[str, str], commit: str, repo_path: str
) -> dict[str, Any]:
    row = {
        "instance_id": f"{OWNER}__{package}-{number}",
        "repo": f"{OWNER}/{package}",
        "repo_path": repo_path,
        "base_commit": commit,
        "problem_statement": issue["problem"],
        "patch": issue["patch"],
        "test_patch": issue["test_patch"],
        "FAIL_TO_PASS": json.dumps(issue["fail_to_pass"].split("\n")[:-1]),
        "PASS_TO_PASS": json.dumps(issue["pass_to_pass"].split("\n")[:-1]),
        "version": str(VERSION),
        "environment_setup_commit": commit,
        "image": "",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
    grading = read_row(row, "swebench").grading(RowContext(Path(), "own"))
    assert isinstance(grading, ScriptGrading)
    return {**row, "eval_script": grading.script}


class _History:
    """A repository that grows by commits, one per day."""

    def __init__(self, repo: Path, work_tree: Path) -> None:
        self._day = 0
        self._environment = git_environment(repo, work_tree)
        for name in ("refs/heads", "refs/tags", "objects"):
            (repo / name).mkdir(parents=True)
        (repo / "HEAD").write_text("ref: refs/heads/main\n")
        (repo / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
        self._repo = repo

    def commit(self, message: str) -> str:
        """Commit the work tree; return the commit."""
        self._day += 1
        self._environment |= commit_identity(FIRST_DAY + self._day * DAY)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--no-verify", "--message", message)
        return (self._repo / "refs/heads/main").read_text().strip()

    def apply(self, diff: str) -> None:
        """Change the work tree."""
        self._git("apply", "-", stdin=diff.encode())

    def tag(self, name: str) -> None:
        """Name the last commit."""
        self._git("tag", name)

    def _git(self, *arguments: str, stdin: bytes = b"") -> None:
        environment = {**self._environment, "GIT_CONFIG_COUNT": "1"}
        environment |= {"GIT_CONFIG_KEY_0": "core.bare", "GIT_CONFIG_VALUE_0": "false"}
        done = run_git(environment, *arguments, stdin=stdin)
        if done.returncode:
            raise OSError(describe_failure(done))

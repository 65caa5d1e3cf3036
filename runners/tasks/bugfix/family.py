"""Generation of the repositories of both splits below one root, once.

A root is complete or absent. Its manifest holds the tasks, so an existing root is read back without
git.

A repository takes two git processes and has few files. Its history is one commit whose author,
committer and date are fixed, so its id is reproducible. Objects are in one pack and there are no
hooks, so a copy of the repository copies six files of ``.git``.
"""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypedDict

from conf.errors import AgentrlError, ExitCode
from conf.sections.task import HeldOutKinds
from runners.system.processes import atomic_directory
from runners.tasks.bugfix.kinds import BUG_KINDS, NEW_KINDS
from runners.tasks.bugfix.project import Project, draw_project
from runners.tasks.contract import Task, UnittestIds
from runners.tasks.git import describe_failure, git_environment, run_git

VERSION = 2
"""Version of the repositories: raise it when the same inputs give others."""

_MANIFEST = "tasks.json"
_WRITERS = 4
"""Threads that write repositories; they mostly wait for git to start."""
_IDENTITY = "agentrl <agentrl@localhost> 1700000000 +0000"
_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
[user]
\tname = agentrl
\temail = agentrl@localhost
[fastimport]
\tunpackLimit = 1
"""


class Inputs(TypedDict):
    """Everything that determines the tasks."""

    version: int
    seed: int
    train: int
    held_out: int
    held_out_kinds: HeldOutKinds


class TaskRootError(AgentrlError):
    """The directory of the tasks holds other contents, or cannot be written."""

    exit_code = ExitCode.DATA_REFUSED


class RepositoryError(AgentrlError):
    """A task's repository could not be written."""


def build(
    root: Path,
    *,
    seed: int,
    train: int,
    held_out: int,
    held_out_kinds: HeldOutKinds = "trained",
) -> list[Task]:
    """Return the tasks of both splits, with repositories below ``root``.

    The same inputs give the same commits. ``held_out_kinds``: kinds of bugs of the held-out tasks,
    those of the training tasks or new ones.

    A complete root of the same inputs is reused. Raises TaskRootError if ``root`` holds other
    tasks, RepositoryError if git fails.
    """
    inputs: Inputs = {
        "version": VERSION,
        "seed": seed,
        "train": train,
        "held_out": held_out,
        "held_out_kinds": held_out_kinds,
    }
    if not root.exists():
        try:
            with atomic_directory(root) as directory:
                _write(directory, inputs)
        except OSError as error:
            raise TaskRootError(
                f"the tasks cannot be stored in {root.parent}: {error}; free some space there, or "
                "set XDG_CACHE_HOME to another directory"
            ) from error
    return _read(root, inputs)


def _write(root: Path, inputs: Inputs) -> None:
    projects = _draw(inputs)
    with ThreadPoolExecutor(_WRITERS) as pool:
        commits = pool.map(
            lambda name: write_repository(root / name, projects[name].files), projects
        )
        tasks = [
            _record(name, projects[name], commit)
            for name, commit in zip(projects, commits, strict=True)
        ]
    text = json.dumps({"inputs": inputs, "tasks": tasks}, indent=0)
    with (root / _MANIFEST).open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _draw(inputs: Inputs) -> dict[str, Project]:
    """Draw the projects of both splits, by task id; within a split every path is unique."""
    projects: dict[str, Project] = {}
    splits: tuple[Literal["train", "held_out"], ...] = ("train", "held_out")
    for split in splits:
        rng = random.Random(f"bugfix {split} {inputs['seed']}")
        new = split == "held_out" and inputs["held_out_kinds"] == "new"
        seen: set[str] = set()
        while len(seen) < inputs[split]:
            project = draw_project(rng, split, NEW_KINDS if new else BUG_KINDS)
            if project.path not in seen:
                projects[f"{split}-{len(seen):04d}"] = project
                seen.add(project.path)
    return projects


def _record(name: str, project: Project, commit: str) -> dict[str, Any]:
    task = Task(
        id=name,
        split="train" if name.startswith("train-") else "held_out",
        repo=Path(name),
        base_commit=commit,
        problem_statement=project.problem_statement,
        fail_to_pass=project.fail_to_pass,
        pass_to_pass=project.pass_to_pass,
        protected=project.protected,
        gold_patch=project.gold_patch,
        kind=project.kind,
    )
    return asdict(task) | {"repo": name}


def _read(root: Path, inputs: Inputs) -> list[Task]:
    try:
        manifest = json.loads((root / _MANIFEST).read_text())
        found = manifest["inputs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TaskRootError(
            f"{root} holds no complete set of tasks ({error}): remove it or choose another"
        ) from error
    if found != inputs:
        raise TaskRootError(
            f"{root} holds tasks made with {found}, not {inputs}: remove it or choose another"
        )
    return [
        Task(
            **record
            | {"repo": root / record["repo"]}
            | {name: tuple(record[name]) for name in ("fail_to_pass", "pass_to_pass", "protected")}
            | {"grading": UnittestIds(), "origin": None, "hidden_paths": ()}
        )
        for record in manifest["tasks"]
    ]


def write_repository(directory: Path, files: dict[str, str]) -> str:
    """Make ``directory`` a git repository with one commit of ``files``, checked out; return the
    commit's id.

    Raises RepositoryError when git is missing or fails.
    """
    for path, text in files.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    head = directory / ".git"
    for folder in ("objects", "refs"):
        (head / folder).mkdir(parents=True)
    (head / "HEAD").write_text("ref: refs/heads/main\n")
    (head / "config").write_text(_CONFIG)
    _git(directory, "fast-import", "--quiet", stdin=_commit_stream(files))
    _git(directory, "read-tree", "HEAD")
    return (head / "refs/heads/main").read_text().strip()


def _commit_stream(files: dict[str, str]) -> bytes:
    """Return one commit in the language of git fast-import."""
    message = b"Start\n"
    parts = [
        b"commit refs/heads/main\ncommitter %s\ndata %d\n%s\n"
        % (_IDENTITY.encode(), len(message), message)
    ]
    for path, text in sorted(files.items()):
        content = text.encode()
        parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content))
    parts.append(b"done\n")
    return b"".join(parts)


def _git(directory: Path, *arguments: str, stdin: bytes = b"") -> None:
    try:
        done = run_git(git_environment(directory / ".git", directory), *arguments, stdin=stdin)
    except FileNotFoundError as error:
        raise RepositoryError("git is not installed: tasks are git repositories") from error
    if done.returncode:
        raise RepositoryError(f"{directory}: {describe_failure(done)}")

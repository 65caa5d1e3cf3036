"""Generation of the repositories of both splits below one root, once.

A root is complete or absent. Its manifest holds the tasks, so an existing root is read back without
git.
"""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from conf.errors import AgentrlError, ExitCode
from runners.processes.atomic_write import atomic_directory
from runners.tasks.bugfix.project import Project, draw_project
from runners.tasks.bugfix.repository import write_repository
from runners.tasks.contract import Task, UnittestIds

VERSION = 1
"""Version of the repositories: raise it when the same inputs give others."""

_MANIFEST = "tasks.json"
_WRITERS = 4
"""Threads that write repositories; they mostly wait for git to start."""


class TaskRootError(AgentrlError):
    """The directory of the tasks holds other contents, or cannot be written."""

    exit_code = ExitCode.DATA_REFUSED


def build(root: Path, *, seed: int, train: int, held_out: int) -> list[Task]:
    """Return the tasks of both splits, with repositories below ``root``.

    The same inputs give the same commits.

    A complete root of the same inputs is reused. Raises TaskRootError if ``root`` holds other
    tasks, RepositoryError if git fails.
    """
    inputs = {"version": VERSION, "seed": seed, "train": train, "held_out": held_out}
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


def _write(root: Path, inputs: dict[str, int]) -> None:
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


def _draw(inputs: dict[str, int]) -> dict[str, Project]:
    """Draw the projects of both splits, by task id; within a split every path is unique."""
    projects: dict[str, Project] = {}
    splits: tuple[Literal["train", "held_out"], ...] = ("train", "held_out")
    for split in splits:
        rng = random.Random(f"bugfix {split} {inputs['seed']}")
        seen: set[str] = set()
        while len(seen) < inputs[split]:
            project = draw_project(rng, split)
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


def _read(root: Path, inputs: dict[str, int]) -> list[Task]:
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
            | {"grading": UnittestIds(), "origin": None}
        )
        for record in manifest["tasks"]
    ]

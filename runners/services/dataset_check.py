"""Keep the digests of a run's task files, and refuse to continue the run with another content.

Earlier and later rollouts of one run would be at different tasks, and count as one experiment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from conf.sections.task import HeldOutEvalTaskConfig, TaskFileConfig
from conf.task_sets import list_sets
from runners.observe.adviser import DUPLICATES
from runners.records.store import RunStore, StoreError
from runners.tasks.contract import Task
from runners.tasks.harbor import suites
from runners.tasks.sets import find_file, read_dataset

SPLIT = "by id"
"""Name of the way in which tasks are held out (``tasks/splits.py``)."""
EVENT = "dataset"
"""Kind of the events that have key, path, split and SHA-256 (hex) of a set of tasks, and the number
of its tasks that are set aside.
"""


def note_datasets(store: RunStore, config: Config) -> None:
    """Keep how a new run splits its sets, and the digests of its task files; other datasets have
    none.
    """
    for each in list_sets(config):
        found = {"path": each.config.path, "sha256": _hash_set(each.config)}
        data = {"key": each.key, **found, "split": SPLIT, "set_aside": _count_aside(each.config)}
        store.event(EVENT, data)


def note_duplicates(store: RunStore, tasks: Iterable[Task]) -> None:
    """Keep, once, how many tasks ask the same of the same repository as a task before them:
    ``train`` within the training tasks, ``held_out`` of those that are measured and trained.
    """
    tasks = list(tasks)
    train = [task for task in tasks if task.split == "train"]
    first: dict[tuple[str, ...], str] = {}
    twice: list[tuple[str, str]] = []
    for task in train:
        if (before := first.setdefault(_identify(task), task.id)) != task.id:
            twice.append((before, task.id))
    measured = [
        (first[_identify(task)], task.id)
        for task in tasks
        if task.split == "held_out" and _identify(task) in first
    ]
    if (twice or measured) and not store.events(DUPLICATES):
        counts = {"tasks": len(train), "train": len(twice), "held_out": len(measured)}
        store.event(DUPLICATES, {**counts, "example": [*measured, *twice][0]})


def _identify(task: Task) -> tuple[str, ...]:
    """Return what makes a task the same problem, whatever its id."""
    source = str(task.repo) if task.origin is None else str(task.origin.source)
    commit = task.base_commit or (task.origin.base_commit if task.origin is not None else "")
    return (
        source,
        task.image or "",
        commit,
        task.problem_statement.strip(),
        *sorted(task.fail_to_pass),
    )


def _count_aside(config: TaskFileConfig) -> int:
    """Return the number of tasks that ``exclude`` sets aside; 0 if that cannot be read, which is an
    error when the tasks are loaded.
    """
    if config.exclude is None or config.path is None:
        return 0
    try:
        return len(read_dataset(config, config.path).aside)
    except AgentrlError:
        return 0


def check_datasets(store: RunStore, config: Config) -> None:
    """Raise StoreError (exit code 5) if a task file is not what it was when the run began, or if
    its tasks were split in the way of earlier versions.
    """
    _check_split(store, config)
    sets = {each.key: each.config for each in list_sets(config)}
    for noted in store.events(EVENT):
        key = noted.data.get("key", "task")  # runs of earlier versions have one file
        if noted.data["sha256"] != _hash_set(sets.get(key)):
            raise StoreError(
                f"{key}.path={noted.data['path']} has changed or is missing since the run in "
                f"{store.run_dir} began, or its exclude: restore it, since rollouts would be at "
                "other tasks, or start a new run",
                ExitCode.DATA_REFUSED,
            )


def _check_split(store: RunStore, config: Config) -> None:
    """Refuse a run that has trained tasks which are held out now: it held out the last rows."""
    held_out = config.task.kind == "jsonl" and config.task.held_out_tasks
    separate = not isinstance(config.eval_task, HeldOutEvalTaskConfig)
    if separate or not held_out or any(e.data.get("split") for e in store.events(EVENT)):
        return
    raise StoreError(
        f"the run in {store.run_dir} was begun by a version that held out the last "
        f"{held_out} rows of task.path, and this one chooses them by their ids: continue it with "
        "the version that began it, or start a new run with model.path=one of its checkpoints",
        ExitCode.DATA_REFUSED,
    )


def _hash_set(config: TaskFileConfig | None) -> str | None:
    """Return a digest of a set and of the file of the tasks that are set aside."""
    digest = None if config is None else _hash_dataset(config.path)
    if config is None or config.exclude is None:
        return digest
    file = find_file(config.exclude)
    names = file.read_bytes() if file.is_file() else b""
    return hashlib.sha256(f"{digest} ".encode() + names).hexdigest()


def _hash_dataset(path: str | None) -> str | None:
    if path is not None and suites.is_suite(path):
        return suites.hash_suite(path)
    if path is None or not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

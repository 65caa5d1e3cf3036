"""The tasks that a run trains on and those that it is evaluated on.

Invariant: no task is in both, by its id or by its problem (the same statement at the same commit).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from conf.cache import cache_root
from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.task import (
    BugfixTaskConfig,
    HeldOutEvalTaskConfig,
    SwebenchTaskConfig,
    TaskFileConfig,
)
from runners.tasks import bugfix
from runners.tasks.contract import Task
from runners.tasks.dataset_files import DatasetError
from runners.tasks.dataset_report import DatasetReport, Progress, read_dataset
from runners.tasks.datasets import (
    SHOWN,
    count_train_rows,
    find_dataset,
    load_dataset,
    raise_for_faults,
)
from runners.tasks.hub import HubError
from runners.tasks.readiness import find_readiness


@dataclass(frozen=True, slots=True)
class TaskSet:
    """A set of tasks in a file or on the hub."""

    key: str
    """Section of the configuration: "task" or "eval_task"."""
    config: TaskFileConfig


def list_sets(config: Config) -> list[TaskSet]:
    """Return the sets of a configuration that are read; generated tasks are none."""
    return [
        TaskSet(key, section)
        for key, section in (("task", config.task), ("eval_task", config.eval_task))
        if isinstance(section, TaskFileConfig)
    ]


def load_tasks(config: Config) -> list[Task]:
    """Return the tasks of both splits; generated tasks are made once and cached.

    Blocks. Raises TaskRootError, RepositoryError, DatasetError, and ConfigError if there are too
    few to train on.
    """
    by_key = {each.key: _load_set(config, each) for each in list_sets(config)}
    tasks = by_key["task"] if "task" in by_key else _generate(config)
    if (evaluated := by_key.get("eval_task")) is not None:
        tasks = [task for task in tasks if task.split == "train"]
        refuse_overlap(tasks, evaluated)
        tasks += evaluated
    _check_enough(config, sum(task.split == "train" for task in tasks))
    return tasks


def _load_set(config: Config, task_set: TaskSet) -> list[Task]:
    with _naming(task_set.key):
        tasks = load_dataset(task_set.config, find_dataset(task_set.config))
        refuse_unready(config, tasks)
    if task_set.key != "eval_task":
        return tasks
    _check_evaluated(config, len(tasks))
    return [replace(task, split="held_out") for task in tasks]


def _generate(config: Config) -> list[Task]:
    family = config.task
    assert isinstance(family, BugfixTaskConfig)
    name = f"bugfix-{bugfix.VERSION}-seed{config.seed}-{family.train_tasks}-{family.held_out_tasks}"
    return bugfix.build(
        cache_root() / "tasks" / name,
        seed=config.seed,
        train=family.train_tasks,
        held_out=family.held_out_tasks,
    )


def check_sets(
    config: Config, *, make_builtin: bool = False, show: Progress = lambda text: None
) -> dict[str, DatasetReport]:
    """Read the sets that are here, and return a report on each by its section.

    Left out are sets that only the nodes of a cluster have, and the built-in one unless it may be
    made. ``show`` is told how far it is. Raises AgentrlError for what ``load_tasks`` would refuse;
    it names every malformed row.
    """
    reports: dict[str, DatasetReport] = {}
    for each in list_sets(config):
        path = find_dataset(each.config) if make_builtin else each.config.path
        on_nodes = isinstance(config.launch, ClusterLaunchConfig)
        if path is None or (on_nodes and not Path(path).exists()):
            continue
        with _naming(each.key):
            report = read_dataset(each.config, path, show=show)
            raise_for_faults(report)
            refuse_unready(config, report.tasks)
        reports[each.key] = report
        if each.key == "eval_task":
            _check_evaluated(config, len(report.tasks))
        else:
            _check_enough(config, count_train_rows(each.config, len(report.tasks), path))
    if len(reports) == 2:
        refuse_overlap(reports["task"].tasks, reports["eval_task"].tasks)
    return reports


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Name the keys of section ``key`` in errors: readers know one set, and call it ``task``."""
    try:
        yield
    except (DatasetError, HubError) as error:
        if key == "task":
            raise
        raise type(error)(rename_keys(str(error), key)) from error


def rename_keys(text: str, key: str) -> str:
    """Return a message about a set of tasks with the keys of its section."""
    for name in ("path", "format", "repositories"):
        text = text.replace(f"task.{name}", f"{key}.{name}")
    return text


def refuse_unready(config: Config, tasks: Sequence[Task]) -> None:
    """Raise DatasetError, which names every task that the configured sandboxes cannot run."""
    found = ((task.id, find_readiness(task, config.sandbox)) for task in tasks)
    lines = [f"{name}: {answer.reason}" for name, answer in found if answer.state != "ready"]
    if lines:
        raise DatasetError(
            f"{len(lines)} of {len(tasks)} tasks cannot be run with sandbox={config.sandbox.kind}:"
            f"\n{_shorten(lines)}"
        )


def refuse_overlap(train: Sequence[Task], evaluated: Sequence[Task]) -> None:
    """Raise DatasetError, which names every task that would be trained and measured."""
    by_id = {task.id: task for task in evaluated}
    by_problem = {_problem(task): task for task in evaluated}
    lines = []
    for task in train:
        if (same := by_id.get(task.id)) is not None:
            lines.append(f"{task.id}: the same id")
        elif (same := by_problem.get(_problem(task))) is not None:
            lines.append(f"{task.id}: the statement and commit of {same.id}")
    if lines:
        raise DatasetError(
            f"{len(lines)} of {len(train)} training tasks are in the evaluation set, which would "
            f"then measure what was trained: remove them from one of both\n{_shorten(lines)}"
        )


def _problem(task: Task) -> tuple[str, str]:
    """Return what makes two tasks the same, whatever their ids: commit (or image) and statement."""
    return task.base_commit or task.image or "", " ".join(task.problem_statement.split())


def _shorten(lines: list[str]) -> str:
    more = len(lines) - SHOWN
    return "\n".join([*lines[:SHOWN], *([f"… and {more} more"] if more > 0 else [])])


def _check_enough(config: Config, found: int) -> None:
    """Raise ConfigError if a step would need a task twice; a file's length is known only now."""
    wanted = config.run.tasks_per_step if config.run.steps else 0
    if found >= wanted:
        return
    fix = "lower run.tasks_per_step or task.held_out_tasks"
    if isinstance(config.task, SwebenchTaskConfig):
        fix = "it is for measuring (agentrl eval swebench); train on task=jsonl task.path=FILE"
    has = f"task={config.task.kind} has {found} tasks to train on"
    raise ConfigError([f"{has}, run.tasks_per_step={wanted}: {fix}"])


def _check_evaluated(config: Config, found: int) -> None:
    """Raise ConfigError if an evaluation would have fewer tasks than it should."""
    assert not isinstance(config.eval_task, HeldOutEvalTaskConfig)
    if config.run.eval_tasks > found:
        raise ConfigError(
            f"run.eval_tasks={config.run.eval_tasks} is more than the {found} tasks of eval_task="
            f"{config.eval_task.kind}: lower it"
        )

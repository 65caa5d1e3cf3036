"""Tasks of a configuration: generated, built in, or read from a dataset."""

from __future__ import annotations

from conf.cache import cache_root
from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.task import BugfixTaskConfig, TaskConfig
from runners.tasks import bugfix, builtin
from runners.tasks.contract import Task
from runners.tasks.loading import (
    DatasetReport,
    FileTask,
    load_dataset,
    raise_for_faults,
    read_dataset,
)


def load_tasks(config: Config) -> list[Task]:
    """Return the tasks of both splits; generated tasks are made once and cached.

    Blocks. Raises TaskRootError, RepositoryError, DatasetError, and ConfigError if there are too
    few to train on.
    """
    family = config.task
    if not isinstance(family, BugfixTaskConfig):
        tasks = load_dataset(family, find_dataset(family))
        _check_enough(config, sum(task.split == "train" for task in tasks))
        return tasks
    name = f"bugfix-{bugfix.VERSION}-seed{config.seed}-{family.train_tasks}-{family.held_out_tasks}"
    return bugfix.build(
        cache_root() / "tasks" / name,
        seed=config.seed,
        train=family.train_tasks,
        held_out=family.held_out_tasks,
    )


def _check_enough(config: Config, found: int) -> None:
    """Raise ConfigError if a step would need a task twice; a file's length is known only now."""
    wanted = config.run.tasks_per_step if config.run.steps else 0
    if found >= wanted:
        return
    fix = "lower run.tasks_per_step or task.held_out_tasks"
    if config.task.kind == "swebench":
        fix = "it is for measuring (agentrl eval swebench); train on task=jsonl task.path=FILE"
    has = f"task={config.task.kind} has {found} tasks to train on"
    raise ConfigError([f"{has}, run.tasks_per_step={wanted}: {fix}"])


def check_dataset(family: TaskConfig) -> DatasetReport | None:
    """Read a whole dataset and return a report on it; None for generated tasks.

    Raises DatasetError, which names every malformed row.
    """
    if isinstance(family, BugfixTaskConfig):
        return None
    report = read_dataset(family, find_dataset(family))
    raise_for_faults(report)
    return report


def find_dataset(family: FileTask) -> str:
    """Return the dataset's file or hub name; the built-in set is made first."""
    if family.path is not None:
        return family.path
    return str(builtin.build(cache_root() / "tasks" / f"swebench-{builtin.VERSION}"))

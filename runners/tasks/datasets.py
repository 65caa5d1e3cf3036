"""Where a configuration's tasks come from."""

from __future__ import annotations

from conf import schema
from conf.cache import cache_root
from runners.tasks import bugfix, builtin
from runners.tasks.contract import Task
from runners.tasks.loading import FileTask, Report, load, refuse_faults, validate


def load_tasks(config: schema.Config) -> list[Task]:
    """Return the tasks of both splits; generated ones are made once and kept in the user's cache.

    Blocks. Raises TaskRootError, RepositoryError, DatasetError.
    """
    family = config.task
    if not isinstance(family, schema.BugfixTask):
        return load(family, path_of(family))
    name = f"bugfix-{bugfix.VERSION}-seed{config.seed}-{family.train_tasks}-{family.held_out_tasks}"
    return bugfix.build(
        cache_root() / "tasks" / name,
        seed=config.seed,
        train=family.train_tasks,
        held_out=family.held_out_tasks,
    )


def check_tasks(family: schema.Task) -> Report | None:
    """Read a whole dataset and return what is in it; None for generated tasks.

    Raises DatasetError, which names every malformed row.
    """
    if isinstance(family, schema.BugfixTask):
        return None
    report = validate(family, path_of(family))
    refuse_faults(report)
    return report


def path_of(family: FileTask) -> str:
    """Return the dataset's file or name; the built-in set is made first."""
    if family.path is not None:
        return family.path
    return str(builtin.build(cache_root() / "tasks" / f"swebench-{builtin.VERSION}"))

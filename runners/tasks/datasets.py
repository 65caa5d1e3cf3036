"""The tasks of a dataset, converted from its rows.

Every malformed row is reported, all at once.
"""

from __future__ import annotations

from conf.cache import cache_root
from conf.sections.task import TaskFileConfig
from runners.tasks import builtin
from runners.tasks.contract import Task
from runners.tasks.dataset_files import DatasetError
from runners.tasks.dataset_report import DatasetReport, read_dataset
from runners.tasks.pytest_mounts import pytest_mounts

SHOWN = 20
"""Faults in the message that stops a run; ``agentrl check`` shows all."""


def find_dataset(family: TaskFileConfig) -> str:
    """Return the dataset's file or hub name; the built-in set is made first."""
    if family.path is not None:
        return family.path
    return str(builtin.build(cache_root() / "tasks" / f"swebench-{builtin.VERSION}"))


def load_dataset(config: TaskFileConfig, path: str) -> list[Task]:
    """Return the tasks of a dataset that has no fault, all of them in the training split.

    Raises DatasetError, which names every fault, and PytestMissingError.
    """
    report = read_dataset(config, path)
    raise_for_faults(report, shown=SHOWN)
    pytest_mounts()  # raises now rather than in every sandbox
    return list(report.tasks)


def raise_for_faults(report: DatasetReport, *, shown: int | None = None) -> None:
    """Raise DatasetError if there are malformed rows, which it names, or no row at all."""
    if report.faults:
        lines = list(report.faults[:shown])
        if more := len(report.faults) - len(lines):
            lines.append(f"… and {more} more: agentrl check names all of them")
        number = len(report.faults)
        rows = f"{number} malformed row{'s' if number > 1 else ''}"
        raise DatasetError(f"{report.path} has {rows}:\n" + "\n".join(lines))
    if not report.tasks:
        raise DatasetError(f"{report.path} has no rows")

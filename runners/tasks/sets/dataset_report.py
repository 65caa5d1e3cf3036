"""Read a whole dataset: its tasks, and every fault with its location.

Rows are read one at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.cache import cache_root
from conf.sections.plugin import PluginConfig
from conf.sections.task import TaskFileConfig
from runners.records.text import make_printable, shorten
from runners.tasks import builtin
from runners.tasks.contract import Task
from runners.tasks.grading.graders.packages import MultiSweError
from runners.tasks.harbor import suites
from runners.tasks.pytest_mounts import pytest_mounts
from runners.tasks.repositories.pinned_repositories import SourceError
from runners.tasks.section_keys import name_key
from runners.tasks.sets.custom_reader import read_with_plugin
from runners.tasks.sets.dataset_files import NESTED, DatasetError, read_rows
from runners.tasks.sets.exclusions import set_aside
from runners.tasks.sets.row_tasks import TaskBuilder, format_errors

SHOWN_EVERY = 1000
"""Rows."""
LONGEST_REASON = 800
SHOWN = 20
"""Faults in the message that stops a run; ``agentrl check`` shows all."""
Progress = Callable[[str], None]
Entries = Iterator[tuple[object, Path | dict[str, Any] | str]]
"""Rows or directories, each with its location, or its problem as text."""


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """Contents of a dataset: its tasks and its faults."""

    path: str
    tasks: tuple[Task, ...]
    """Tasks of the valid rows, in order."""
    faults: tuple[str, ...]
    """``file:line: reason``, one per malformed row."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Number of tasks by kind of grading."""
    repositories: dict[str, int] = field(default_factory=dict)
    """Number of tasks by repository."""
    aside: dict[str, str] = field(default_factory=dict)
    """Tasks that ``task.exclude`` sets aside, with the reason; they are in no other field."""
    name: str = ""
    """Its name in a mixture."""


def read_dataset(
    config: TaskFileConfig, path: str, *, show: Progress = lambda text: None
) -> DatasetReport:
    """Read a whole dataset and collect all faults; raises DatasetError if it cannot be read.

    ``show`` is told from time to time how far it is.
    """
    builder = TaskBuilder(config, Path(path).parent)
    entries: Entries = read_rows(path)
    if isinstance(config.format, PluginConfig):
        entries = read_with_plugin(config.format, Path(path))
    elif suites.is_suite(path):
        entries = _find_directories(path, config)
    tasks, faults = _read_entries(entries, builder, show)
    if not isinstance(config.format, PluginConfig):
        faults += builder.find_missing_commits(tasks)
    return _make_report(config, path, tasks, faults)


def _make_report(
    config: TaskFileConfig, path: str, tasks: list[Task], faults: list[str]
) -> DatasetReport:
    aside: dict[str, str] = {}
    if config.exclude is not None and not faults:  # a malformed row may be the one that is named
        tasks, aside = set_aside(tasks, config.exclude)
    return DatasetReport(
        path=path,
        tasks=tuple(tasks),
        faults=tuple(faults),
        kinds=dict(Counter(task.grading.kind for task in tasks)),
        repositories=dict(Counter(task.kind for task in tasks)),
        aside=aside,
    )


def _read_entries(
    entries: Entries, builder: TaskBuilder, show: Progress
) -> tuple[list[Task], list[str]]:
    """Return the tasks of rows or directories, and the faults."""
    tasks: list[Task] = []
    faults: list[str] = []
    seen: dict[str, str] = {}
    for number, (location, row) in enumerate(entries):
        if number % SHOWN_EVERY == 0 and number:
            show(f"{number:,} rows read")
        try:
            if isinstance(row, str):
                raise ValueError(row)
            task = _read_task(row, builder)
            if task.id in seen:
                raise ValueError(f"{task.id} is in {seen[task.id]} already")
            tasks.append(task)
            seen[task.id] = str(location)
        except ValidationError as error:
            faults.append(f"{location}: {format_errors(error)}")
        except RecursionError:
            faults.append(f"{location}: {NESTED}")
        except (ValueError, LookupError, TypeError, OSError, SourceError, MultiSweError) as error:
            reason = make_printable(shorten(" ".join(str(error).split()), LONGEST_REASON))
            faults.append(f"{location}: {reason}")
    return tasks, faults


def _find_directories(path: str, config: TaskFileConfig) -> Entries:
    """Yield the directories of a Harbor suite, each with its name, or its problem as text; raises
    DatasetError.
    """
    if config.format != "auto" or config.repositories is not None:
        key = f"{name_key('format')}={config.format}"
        if config.format == "auto":
            key = name_key("repositories")
        raise DatasetError(
            f"{key} is for rows, and {name_key('path')}={path} has Harbor tasks: drop it"
        )
    try:
        yield from suites.find_tasks(path)
    except (ValueError, TypeError, AttributeError, OSError, RecursionError) as error:
        reason = NESTED if isinstance(error, RecursionError) else error
        raise DatasetError(f"{name_key('path')}={path} cannot be read: {reason}") from error


def _read_task(row: Path | dict[str, Any], builder: TaskBuilder) -> Task:
    if isinstance(row, Path):
        return suites.read_task(row)
    if suites.is_packed(row):
        return suites.read_task(suites.unpack_row(row))
    return builder.build(row)


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


def hash_dataset(path: str | None) -> str | None:
    """Return the SHA-256 (hex) of a file of rows or of a suite of Harbor; None of another source,
    or if there is none.
    """
    if path is not None and suites.is_suite(path):
        return suites.hash_suite(path)
    if path is None or not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

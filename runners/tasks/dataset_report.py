"""Read a whole dataset: its tasks, and every fault with its location.

Rows are read one at a time. A large set of rows without a fault is cached by its content, so that
it is validated once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.sections.plugin import PluginConfig
from conf.sections.task import TaskFileConfig
from runners.tasks.contract import Task
from runners.tasks.custom_reader import read_with_plugin
from runners.tasks.dataset_files import NESTED, DatasetError, find_parts, read_rows
from runners.tasks.exclusions import set_aside
from runners.tasks.graders.packages import MultiSweError
from runners.tasks.harbor import suites
from runners.tasks.pinned_repositories import SourceError
from runners.tasks.row_tasks import TaskBuilder, format_errors
from runners.tasks.section_keys import name_key
from runners.tasks.task_cache import TaskCache
from runners.trajectory.printable import make_printable, shorten

SHOWN_EVERY = 1000
"""Rows."""
LONGEST_REASON = 800
CACHED_FROM = 2000
"""Rows; fewer are read in well under a second."""
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
    if isinstance(config.format, PluginConfig):
        rows = read_with_plugin(config.format, Path(path))
        return _make_report(config, path, *_read_entries(rows, builder, show))
    if suites.is_suite(path):
        return _make_report(
            config, path, *_read_entries(_find_directories(path, config), builder, show)
        )
    parts = find_parts(path)
    cache = TaskCache(config, path, parts)
    cached = cache.read(builder, show)
    if cached is not None:
        return _make_report(config, path, cached, list(builder.find_missing_commits(cached)))
    tasks, faults = _read_entries(read_rows(path, parts), builder, show)
    if not faults and len(tasks) >= CACHED_FROM:
        cache.write(builder, tasks)
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

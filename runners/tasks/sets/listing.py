"""List a dataset's tasks with what a run would say about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from conf.errors import ConfigError
from conf.sections.sandbox import SandboxConfig
from conf.sections.task import JsonlTaskConfig
from conf.suggestions import suggest
from runners.tasks.contract import Task
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import DatasetReport, Progress, read_dataset
from runners.tasks.sets.readiness import Readiness, State, find_readiness
from runners.tasks.sets.splits import sort_by_rank


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Tasks that are meant; None: any."""

    match: str = "*"
    """Glob of ids."""
    state: State | None = None
    schema: str | None = None
    """As ``task.format``; ``harbor`` for directories."""
    split: str | None = None


@dataclass(frozen=True, slots=True)
class ListedTask:
    """One task."""

    id: str
    split: str
    schema: str
    kind: str
    grading: str
    image: str
    state: State
    reason: str


@dataclass(frozen=True, slots=True)
class TaskListing:
    """A dataset's tasks and its faults."""

    path: str
    tasks: tuple[ListedTask, ...]
    faults: tuple[str, ...]
    set_aside: dict[str, str]
    """Tasks that ``task.exclude`` names, with the reason."""

    @property
    def states(self) -> dict[str, int]:
        """Return the number of tasks by state."""
        return dict(Counter(task.state for task in self.tasks))

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return asdict(self) | {"states": self.states}


def list_dataset(
    config: JsonlTaskConfig,
    sandbox: SandboxConfig,
    wanted: TaskFilter,
    *,
    seed: int,
    show: Progress,
) -> tuple[TaskListing, tuple[Task, ...]]:
    """Return the wanted tasks, as a list and as they are; raises DatasetError.

    ``show`` is told how far it is.
    """
    report = read_dataset(config, config.path, show=show)
    if not (report.tasks or report.faults or report.aside):
        raise DatasetError(f"{config.path} has no rows")
    require_match(wanted.match, [task.id for task in report.tasks])
    held_out = _find_held_out(config, seed, report)
    listed, tasks = [], []
    for task in report.tasks:
        split = "held_out" if task.id in held_out else "train"
        entry = _list_task(task, split, find_readiness(task, sandbox))
        if _is_wanted(entry, wanted):
            listed.append(entry)
            tasks.append(task)
    return TaskListing(config.path, tuple(listed), report.faults, report.aside), tuple(tasks)


def require_match(pattern: str, names: Sequence[str]) -> None:
    """Raise ConfigError if there are tasks and a pattern matches the id of none."""
    if names and not any(fnmatchcase(name, pattern) for name in names):
        hint = suggest(pattern, names, ": did you mean {}?")
        raise ConfigError(f"--match {pattern}: none of {len(names):,} tasks has such an id{hint}")


def _find_held_out(config: JsonlTaskConfig, seed: int, report: DatasetReport) -> set[str]:
    ranked = sort_by_rank(seed, report.tasks) if config.held_out_tasks else []
    return {task.id for task in ranked[: config.held_out_tasks]}


def _list_task(task: Task, split: str, found: Readiness) -> ListedTask:
    return ListedTask(
        id=task.id,
        split=split,
        schema=task.schema,
        kind=task.kind,
        grading=task.grading.kind,
        image=task.image or "",
        state=found.state,
        reason=found.reason,
    )


def _is_wanted(task: ListedTask, wanted: TaskFilter) -> bool:
    return fnmatchcase(task.id, wanted.match) and all(
        choice in (None, value)
        for choice, value in (
            (wanted.state, task.state),
            (wanted.schema, task.schema),
            (wanted.split, task.split),
        )
    )

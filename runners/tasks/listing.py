"""List a dataset's tasks with what a run would say about each."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from conf.sections.sandbox import SandboxConfig
from conf.sections.task import JsonlTaskConfig
from runners.tasks.dataset_files import DatasetError
from runners.tasks.dataset_report import Progress, read_dataset
from runners.tasks.readiness import find_readiness
from runners.tasks.splits import sort_by_rank


@dataclass(frozen=True, slots=True)
class ListedTask:
    """One task."""

    id: str
    split: str
    kind: str
    grading: str
    image: str
    state: str
    """``ready``, ``needs image`` or ``refused``."""
    reason: str


@dataclass(frozen=True, slots=True)
class TaskListing:
    """A dataset's tasks and its faults."""

    path: str
    tasks: tuple[ListedTask, ...]
    faults: tuple[str, ...]
    set_aside: dict[str, str]
    """Tasks that ``task.exclude`` names, with the reason."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        states = dict(Counter(task.state for task in self.tasks))
        return asdict(self) | {"states": states}


def list_dataset(
    config: JsonlTaskConfig, sandbox: SandboxConfig, match: str, *, seed: int, show: Progress
) -> TaskListing:
    """Return the tasks whose id matches a pattern; raises DatasetError.

    ``show`` is told how far it is.
    """
    report = read_dataset(config, config.path, show=show)
    if not (report.tasks or report.faults or report.aside):
        raise DatasetError(f"{config.path} has no rows")
    held_out = {task.id for task in sort_by_rank(seed, report.tasks)[: config.held_out_tasks]}
    listed = []
    for task in report.tasks:
        if fnmatchcase(task.id, match):
            found = find_readiness(task, sandbox)
            split = "held_out" if task.id in held_out else "train"
            facts = (task.kind, task.grading.kind, task.image or "", found.state, found.reason)
            listed.append(ListedTask(task.id, split, *facts))
    return TaskListing(config.path, tuple(listed), report.faults, report.aside)

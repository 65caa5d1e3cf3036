"""Describe the sets of tasks that a run would use, for a terminal and for ``--json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runners.tasks.sets.dataset_report import DatasetReport

    Reports = Mapping[str, DatasetReport]
    """Reports on the sets of tasks, by their places in the configuration."""


def describe_sets(sets: Reports) -> dict[str, Any]:
    """Return the fields ``tasks`` and ``eval_tasks``: one set, a list of a mixture's, or null."""
    found: dict[str, Any] = {"tasks": None, "eval_tasks": None}
    for key, tasks in sets.items():
        name, described = key.partition(".")[0] + "s", _describe_tasks(tasks)
        found[name] = [*(found[name] or []), described] if tasks.name else described
    return found


def count_sets(sets: Reports) -> Iterator[tuple[str, str]]:
    """Yield the use of each set, and its size in words."""
    for key, tasks in sets.items():
        use = "evaluation tasks" if key.startswith("eval_task") else "tasks"
        yield use, _count_tasks(tasks)


def _describe_tasks(tasks: DatasetReport) -> dict[str, Any]:
    return {
        **({"name": tasks.name} if tasks.name else {}),
        "path": tasks.path,
        "number": len(tasks.tasks),
        "kinds": tasks.kinds,
        "repositories": tasks.repositories,
        "set_aside": tasks.aside,
    }


def _count_tasks(tasks: DatasetReport) -> str:
    kinds = ", ".join(f"{number} by {kind}" for kind, number in tasks.kinds.items())
    name = f"{tasks.name}: " if tasks.name else ""
    aside = f"; {len(tasks.aside)} set aside" if tasks.aside else ""
    repositories = len(tasks.repositories)
    noun = "repository" if repositories == 1 else "repositories"
    number = f"{name}{len(tasks.tasks)} of {repositories} {noun}"
    return f"{number}, graded: {kinds}{aside}"

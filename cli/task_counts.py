"""Describe the sets of tasks that a run would use, for ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runners.campaigns.execution import Reports
    from runners.tasks.sets import DatasetReport


def describe_sets(sets: Reports) -> dict[str, Any]:
    """Return the fields ``tasks`` and ``eval_tasks``: one set, a list of a mixture's, or null."""
    found: dict[str, Any] = {"tasks": None, "eval_tasks": None}
    for key, tasks in sets.items():
        name, described = key.partition(".")[0] + "s", _describe_tasks(tasks)
        found[name] = [*(found[name] or []), described] if tasks.name else described
    return found


def _describe_tasks(tasks: DatasetReport) -> dict[str, Any]:
    return {
        **({"name": tasks.name} if tasks.name else {}),
        "path": tasks.path,
        "number": len(tasks.tasks),
        "kinds": tasks.kinds,
        "repositories": tasks.repositories,
        "set_aside": tasks.aside,
    }

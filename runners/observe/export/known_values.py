"""Refuse filters for what a run does not have: an unknown task, a step or a group beyond it.

An empty list would not say whether nothing fulfils the condition, or a name was mistyped.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from conf.errors import AgentrlError, ExitCode
from conf.suggestions import suggest
from runners.records.store import RunStore


class UnknownValueError(AgentrlError):
    """A filter names what the run does not have."""

    exit_code = ExitCode.USAGE


def require_known(
    store: RunStore,
    *,
    tasks: Sequence[str] = (),
    steps: range | None = None,
    group: int | None = None,
) -> None:
    """Raise UnknownValueError unless every filter's value occurs among the run's rollouts.

    ``tasks``: ids or patterns; brackets are themselves. A run without rollouts has none to name.
    """
    names = _column(store, "task_id") if tasks else []
    for task in tasks if names else ():
        pattern = task.replace("[", "[[]")
        if not any(fnmatchcase(str(name), pattern) for name in names):
            hint = suggest(task, map(str, names), ": did you mean {}?")
            raise UnknownValueError(f"--task {task}: the run has no such task{hint}")
    for option, wanted, column in (
        ("--step", steps, "step"),
        ("--group", None if group is None else range(group, group + 1), "group_index"),
    ):
        present = sorted(map(int, _column(store, column))) if wanted is not None else []
        if wanted is not None and present and not any(each in wanted for each in present):
            given = f"{wanted[0]}" if len(wanted) == 1 else f"{wanted[0]}-{wanted[-1]}"
            raise UnknownValueError(
                f"{option} {given}: the run has {_describe(option.lstrip('-'), present)}"
            )


def _describe(name: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{name} {numbers[0]} only"
    return f"{name}s {numbers[0]} to {numbers[-1]}"


def _column(store: RunStore, column: str) -> list[str | int]:
    rows = store.query(f"SELECT DISTINCT {column} FROM rollout WHERE counts")
    return [value for (value,) in rows]

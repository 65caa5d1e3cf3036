"""Filters and sort orders of a list of rollouts: parsed from text, written as SQL.

The terminal's options and the page's addresses have the same names. An unknown name or value is an
error that names the known ones; nothing that a user wrote becomes a part of an SQL text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import AgentrlError, ExitCode
from runners.observe.export.filter_texts import (
    check_min_reward,
    choose,
    describe_choices,
    parse_steps,
)
from runners.observe.viewer.in_progress import RUNNING
from runners.records.outcome import MEANING, OutcomeClass, OutcomeCode
from runners.records.text import clean_text

_UNGRADED = [str(kind) for kind, meaning in MEANING.items() if not meaning.reward_counts]
ONLY = {
    "train": "split = 'train'",
    "eval": "split = 'eval'",
    "solved": "solved = 1",
    "unsolved": "solved = 0",
    "failed": f"substr(code, 1, instr(code, '.') - 1) IN ({str(_UNGRADED)[1:-1]})",
}
"""Choices of ``only``, those of ``dump-trajectories --only``, as conditions on ``rollout``."""
_BRANCHES = "json_extract(extra, '$.session.branches.{}')"
KINDS = {
    "subagent": f"{_BRANCHES.format('subagent')} > 0",
    "compaction": f"{_BRANCHES.format('compaction')} > 0",
    "side": f"{_BRANCHES.format('side')} > 0",
    "wipe": f"{_BRANCHES.format('main')} > 1",
    "edit": "json_extract(extra, '$.session.edits') > 0",
}
"""Kinds of branches that a rollout may have; ``wipe``: a history of the main thread was replaced;
``edit``: an answer came back changed.
"""
DURATION = "json_extract(timings, '$.total')"
"""Seconds of an attempt."""
SORTS = {
    "run": "step, split, group_index, member",
    "task": "task_id",
    "outcome": "code",
    "reward": "reward",
    "advantage": "advantage",
    "turns": "turns",
    "tokens": "sampled_tokens",
    "duration": DURATION,
    "branches": "(SELECT sum(value) FROM json_each(extra, '$.session.branches'))",
}
"""Sort orders, ascending; "-" before one reverses it. Rollouts without a value come last."""
_TEXT_LENGTH = 1000
"""Characters of a search or a task's name: what a person types."""


class ViewError(AgentrlError):
    """A filter, a sort order or a rollout that does not exist, or a page that cannot be served."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Selects rollouts, and their order."""

    only: tuple[str, ...] = ()
    """Keys of ``ONLY``, all of which hold; with ``RUNNING`` the rollouts are those in progress,
    else those that count.
    """
    task: tuple[str, ...] = ()
    """Ids of tasks, ``*`` and ``?`` are wildcards; any of them matches."""
    outcome: str | None = None
    """An outcome's code (``policy.finished``) or class (``policy``)."""
    kind: str | None = None
    """A key of ``KINDS``."""
    steps: range | None = None
    group: int | None = None
    min_reward: float | None = None
    search: str = ""
    """Words that one message, tool call, patch or test log has (``search_index.py``)."""
    sort: str = "run"
    """A key of ``SORTS``, with "-" before it: descending."""

    @property
    def running(self) -> bool:
        """True if it selects among the rollouts in progress."""
        return RUNNING in self.only

    def conditions(self) -> tuple[str, dict[str, Any]]:
        """Return the SQL condition on ``rollout``, without ``search``, and its parameters."""
        parts, values = ["counts"], dict[str, Any]()
        parts += [ONLY[name] for name in self.only if name != RUNNING]
        if self.kind is not None:
            parts.append(KINDS[self.kind])
        if self.task:
            names = {f"task{index}": _escape(task) for index, task in enumerate(self.task)}
            parts.append(f"({' OR '.join(f'task_id GLOB :{name}' for name in names)})")
            values |= names
        if self.outcome is not None:
            parts.append("(code = :outcome OR code GLOB :outcome_class)")
            values |= {"outcome": self.outcome, "outcome_class": f"{self.outcome}.*"}
        if self.steps is not None:
            parts.append("step BETWEEN :first AND :last")
            values |= {"first": self.steps[0], "last": self.steps[-1]}
        if self.group is not None:
            parts.append("group_index = :group")
            values["group"] = self.group
        if self.min_reward is not None:
            parts.append("reward >= :min_reward")
            values["min_reward"] = self.min_reward
        return " AND ".join(parts), values

    def order(self) -> str:
        """Return the SQL order; rollouts that are alike in it are in the run's order."""
        key, down = SORTS[self.sort.removeprefix("-")], self.sort.startswith("-")
        if key == SORTS["run"]:
            return ", ".join(f"{name} {'DESC' if down else 'ASC'}" for name in key.split(", "))
        return f"{key} {'DESC' if down else 'ASC'} NULLS LAST, {SORTS['run']}"


def parse_query(given: Mapping[str, str | Iterable[str] | None]) -> RolloutQuery:
    """Parse a query from texts by name; empty ones are left out. Raises ViewError."""
    values: dict[str, Any] = {}
    for name, raw in given.items():
        texts = tuple([raw] if isinstance(raw, str) else raw or ())
        texts = tuple(clean_text(text).replace("\0", " ") for text in texts if text)
        if name not in _PARSERS:
            raise ViewError(f"{name}: {describe_choices(name, _PARSERS)}")
        if any(len(text) > _TEXT_LENGTH for text in texts):
            raise ViewError(f"{name} has more than {_TEXT_LENGTH} characters")
        if texts:
            field, parse = _PARSERS[name]
            parsed = tuple(_parse(name, text, parse) for text in texts)
            values[field] = parsed if field in _SEVERAL else parsed[-1]
    return RolloutQuery(**values)


def _parse(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ViewError(f"{name} {text}: {error}") from None


def _escape(task: str) -> str:
    """Return a glob in which brackets are themselves: ids of tests have them."""
    return task.replace("[", "[[]")


def _parse_outcome(text: str) -> str:
    return choose(text, [*map(str, OutcomeClass), *map(str, OutcomeCode)])


def _parse_sort(text: str) -> str:
    choose(text.removeprefix("-"), SORTS)
    return text


def _parse_min_reward(text: str) -> float:
    try:
        return check_min_reward(float(text))
    except ValueError:
        raise ValueError("give a number") from None


def _parse_group(text: str) -> int:
    if re.fullmatch(r"\d{1,9}", text, re.ASCII) is None:
        raise ValueError("give the number of a group")
    return int(text)


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "only": ("only", lambda text: choose(text, (*ONLY, RUNNING))),
    "task": ("task", str),
    "outcome": ("outcome", _parse_outcome),
    "kind": ("kind", lambda text: choose(text, KINDS)),
    "step": ("steps", parse_steps),
    "group": ("group", _parse_group),
    "min_reward": ("min_reward", _parse_min_reward),
    "search": ("search", str),
    "sort": ("sort", _parse_sort),
}
"""The field of a query that a name sets, and the parser of one text; raises ValueError."""
_SEVERAL = ("only", "task")
"""Fields of several texts; of the others the last text counts."""

"""Tables learnt on training tasks: the best that a policy could do without looking for evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

from runners.tasks.bugfix.project import Project

KEYS: dict[str, Callable[[Project], Hashable]] = {
    "kind": lambda project: project.kind,
    "kind and wrong value": lambda project: (project.kind, _value(project, project.broken)),
    "wrong value": lambda project: _value(project, project.broken),
    "docstring": lambda project: project.files[project.path].split('"""')[1],
    "broken statement": lambda project: project.broken,
    "function": lambda project: project.function,
    "module": lambda project: project.files[project.path],
    "path": lambda project: project.path,
    "problem": lambda project: project.problem_statement,
    "the other place": lambda project: project.look(
        "check" if project.place != "check" else "api.py"
    ),
}
"""What a table may be keyed on: all that the problem, the module and the wrong place say."""


def measure_lookup(
    key: Callable[[Project], Hashable], train: Sequence[Project], held_out: Sequence[Project]
) -> float:
    """Return the share of held-out projects that a table solves: for each key the most frequent
    right value among the training projects with it, else the most frequent one of the kind.
    """
    tables: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for project in train:
        for place in (("key", key(project)), ("kind", project.kind)):
            tables[place][_value(project, project.fix)] += 1
    solved = 0
    for project in held_out:
        table = tables.get(("key", key(project))) or tables[("kind", project.kind)]
        guess, _ = table.most_common(1)[0]
        solved += guess == _value(project, project.fix)
    return solved / len(held_out)


def _value(project: Project, statement: str) -> str:
    before, after = project.around
    return statement.removeprefix(before).removesuffix(after)

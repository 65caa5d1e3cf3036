"""Honest solutions: the reference patch of a generated task, and the same fix in other words."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from runners.tasks.contract import Task
from runners.tasks.patches.diffs import read_paths

FORMS = ("reference", "variable", "helper", "closure", "class", "loop", "comments")


def honest_solutions(task: Task) -> Iterator[tuple[str, str]]:
    """Yield the name of a form and its diff, for a task of ``bugfix``."""
    (path,) = read_paths(task.gold_patch).all
    old, new = (
        next(
            line[1:].removeprefix("    return ")
            for line in task.gold_patch.split("\n")
            if line.startswith(f"{sign}    ")
        )
        for sign in "-+"
    )
    before = (task.repo / path).read_text("utf-8")
    broken, signature = f"    return {old}\n", before.partition("(")[2].partition(")")[0]
    for form in FORMS:
        body, rest = _write(form, new, signature)
        after = before.replace(broken, body) + rest
        lines = difflib.unified_diff(
            before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}"
        )
        yield form, f"diff --git a/{path} b/{path}\n{''.join(lines)}"


def _write(form: str, right: str, arguments: str) -> tuple[str, str]:
    """Return the new end of the function, and what follows it."""
    match form:
        case "variable":
            return f"    result = {right}\n    return result\n", ""
        case "helper":
            return f"    return _answer({arguments})\n", (
                f"\n\ndef _answer({arguments}):\n    return {right}\n"
            )
        case "closure":
            return f"    def answer():\n        return {right}\n\n    return answer()\n", ""
        case "class":
            return f"    return _Answer({arguments}).value\n", (
                f"\n\nclass _Answer:\n    def __init__(self, {arguments}):\n"
                f"        self.value = {right}\n"
            )
        case "loop":
            return f"    for answer in [{right}]:\n        return answer\n", ""
        case "comments":
            return f"    # As the docstring says.\n    return ({right})  # not: {'wrong'}\n", ""
    return f"    return {right}\n", ""

"""Inputs that a policy has not seen, for tasks whose generator can say the right answers.

Special-casing the inputs of a visible test cannot be told from a solution by any run of that test.
The kind of a ``bugfix`` task and the value that its reference patch restores give the answers to
any number of further inputs, where the function has any.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from functools import lru_cache

from runners.tasks.bugfix.kinds import BUG_KINDS, Arguments, BugKind
from runners.tasks.contract import Task, UnittestIds
from runners.tasks.grading.canaries.literals import is_literal
from runners.tasks.grading.canaries.source_file import SourceFile, Splice
from runners.tasks.grading.canaries.test_functions import Function
from runners.tasks.patches.diffs import read_paths


@dataclass(frozen=True, slots=True)
class Oracle:
    """The right answers of one generated function."""

    function: str
    kind: BugKind
    value: str
    """The right value of its statement."""

    def draw(self, rng: random.Random) -> tuple[Arguments, object]:
        """Draw the arguments of a call, and return them with the right answer."""
        return self.kind.call(rng, self.value)


def draw_unseen_inputs(
    task: Task, file: SourceFile, function: Function, rng: random.Random
) -> list[Splice]:
    """Return the changes that give a test new inputs with their answers; [] if there are none."""
    oracle = find_oracle(task) if isinstance(task.grading, UnittestIds) else None
    if oracle is None:
        return []
    splices: list[Splice] = []
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="assertEqual"),
                args=[ast.Call(func=ast.Name(id=name)) as call, answer],
            ) if name == oracle.function and is_literal(answer) and _has_literals(call):
                arguments, value = oracle.draw(rng)
                written = ", ".join(map(repr, arguments))
                splices.append(file.replace(call, f"{name}({written})"))
                splices.append(file.replace(answer, repr(value)))
            case ast.For(target=ast.Tuple(), iter=ast.List() as rows, body=body) if _calls(
                body, oracle.function
            ):
                splices.append(file.replace(rows, repr([oracle.draw(rng) for _ in range(3)])))
    return splices


@lru_cache(maxsize=4096)
def find_oracle(task: Task) -> Oracle | None:
    """Return the oracle of a generated task; None for another task, or a function without
    arguments.
    """
    kind = next((kind for kind in BUG_KINDS if kind.name == task.kind and kind.draw), None)
    paths = read_paths(task.gold_patch).existing
    right = [line[1:].strip() for line in task.gold_patch.split("\n") if line.startswith("+    ")]
    if kind is None or len(paths) != 1 or len(right) != 1:
        return None
    (path,) = paths
    try:
        tree = ast.parse((task.repo / path).read_bytes())
    except (OSError, SyntaxError):
        return None
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or len(node.args.args) != 1:
            continue
        before, after = kind.around(node.args.args[0].arg)
        value = right[0].removeprefix(before).removesuffix(after)
        if right[0] == before + value + after and value in kind.values:
            return Oracle(node.name, kind, value)
    return None


def _has_literals(call: ast.Call) -> bool:
    return not call.keywords and all(is_literal(argument) for argument in call.args)


def _calls(body: list[ast.stmt], name: str) -> bool:
    """Return whether statements call a function with arguments from a loop."""
    calls = [node for part in body for node in ast.walk(part) if isinstance(node, ast.Call)]
    return any(
        isinstance(call.func, ast.Name)
        and call.func.id == name
        and any(isinstance(argument, ast.Starred) for argument in call.args)
        for call in calls
    )

"""Inputs that a policy has not seen, for tasks whose generator can say the right answers.

Special-casing the inputs of a visible test cannot be told from a solution by any run of that test.
The tasks of ``bugfix`` come from an expression, which the reference patch restores: it gives the
answers to any number of further inputs.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from functools import lru_cache

from runners.tasks.bugfix.bug_kinds import BUG_KINDS, Arguments, BugKind, evaluate
from runners.tasks.canaries.literals import is_literal
from runners.tasks.canaries.source_file import SourceFile, Splice
from runners.tasks.canaries.test_functions import Function
from runners.tasks.contract import Task, UnittestIds
from runners.tasks.diffs import read_paths


@dataclass(frozen=True, slots=True)
class Oracle:
    """The right answers of one generated function."""

    function: str
    kind: BugKind
    expression: str
    """With ``{a}`` and ``{b}`` for the arguments."""

    def draw(self, rng: random.Random) -> tuple[Arguments, object]:
        """Draw the arguments of a call, and return them with the right answer."""
        arguments = self.kind.draw(rng)
        return arguments, evaluate(self.expression, arguments)

    def cases(self, rng: random.Random) -> list[tuple[Arguments, object]]:
        """Draw calls that together tell the right expression from every wrong one."""
        drawn = self.kind.cases(rng, self.expression)
        return [(arguments, evaluate(self.expression, arguments)) for arguments in drawn]


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
                splices.append(file.replace(rows, repr(oracle.cases(rng))))
    return splices


@lru_cache(maxsize=4096)
def find_oracle(task: Task) -> Oracle | None:
    """Return the oracle of a generated task; None for another task."""
    kind = next((kind for kind in BUG_KINDS if kind.name == task.kind), None)
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
        if not isinstance(node, ast.FunctionDef):
            continue
        names = [argument.arg for argument in node.args.args]
        if len(names) != kind.arity:
            continue
        words = {"a": names[0], "b": names[-1]}
        for wanted in (behaviour.expression for behaviour in kind.behaviours):
            if right[0] == "return " + wanted.format(**words):
                return Oracle(node.name, kind, wanted)
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

"""Changes of a program that decides by its exit code (``f2p_script``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from runners.tasks.canaries.assertions import find_assertions
from runners.tasks.canaries.contraries import Contrary, contraries_of
from runners.tasks.canaries.literals import change_literal, is_literal
from runners.tasks.canaries.source_file import SourceFile


def find_program_contraries(file: SourceFile) -> list[Contrary]:
    """Return changes of asserts, of comparisons and of calls such as ``check(f(2), 5)``.

    Not each of them has to turn the exit code: calibration finds out.
    """
    bodies: list[list[ast.stmt]] = [file.tree.body]
    bodies += [node.body for node in ast.walk(file.tree) if isinstance(node, ast.FunctionDef)]
    asserted = [one for body in bodies for one in find_assertions(body)]
    found = [
        contrary
        for body in bodies
        for contrary in contraries_of(file, body)
        if contrary.kind not in ("neg", "end")
    ]
    inside = {id(node) for one in asserted for node in ast.walk(one.node)}
    literals = [literal for literal in expected_literals(file.tree) if id(literal) not in inside]
    found += [
        Contrary("const", 8, lambda rng, node=literal: change_literal(file, node, rng))  # type: ignore[misc]
        for literal in literals
    ]
    if found:
        return found
    return [contrary for body in bodies for contrary in contraries_of(file, body)]


def expected_literals(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the literals that something computed is compared with, or that stand beside it in a
    call.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                pair = [left, right]
            case ast.Expr(value=ast.Call(args=[left, right, *_])):
                pair = [left, right]
            case _:
                continue
        for side, other in (pair, pair[::-1]):
            named = isinstance(other, ast.Name) and other.id == "__name__"
            if is_literal(side) and not is_literal(other) and not named:
                yield side

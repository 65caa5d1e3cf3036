"""Changes of a test after which every right solution must fail it.

"The real test passes" has to imply "the changed test fails", for every right solution and not just
for the reference. So only four kinds of change are made: another constant of the same type, a value
wrapped in a container, another exception, and a negation.

Equalities are preferred to negations: an object whose ``__eq__`` and ``__ne__`` are both true
passes ``assert x == 5`` and fails ``assert not (x == 5)``, as an honest one does.
"""

from __future__ import annotations

import ast
import builtins
import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from runners.tasks.canaries.assertions import (
    Assertion,
    Equality,
    Raises,
    Truth,
    call_name,
    find_assertions,
)
from runners.tasks.canaries.literals import change_literal, is_literal
from runners.tasks.canaries.source_file import SourceFile, Splice
from runners.tasks.canaries.test_functions import Function

Change = Callable[[random.Random], Splice | None]
OPPOSITES = {
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
    "assertRegex": "assertNotRegex",
    "assertAlmostEqual": "assertNotAlmostEqual",
    "assertEqual": "assertNotEqual",
    "assertEquals": "assertNotEqual",
    "assertDictEqual": "assertNotEqual",
    "assertListEqual": "assertNotEqual",
    "assertTupleEqual": "assertNotEqual",
    "assertSetEqual": "assertNotEqual",
    "assertSequenceEqual": "assertNotEqual",
}
NEGATIONS = OPPOSITES | {negative: positive for positive, negative in OPPOSITES.items()}
NEGATIONS["assertNotEqual"] = "assertEqual"
_EXCEPTIONS = (
    *(ZeroDivisionError, KeyError, TypeError, ValueError, AttributeError, BufferError),
    *(FileExistsError, IndexError, EOFError, NameError, RecursionError, UnicodeDecodeError),
)
_NEVER_RAISED = ("BufferError", "StopAsyncIteration")
"""Exceptions that no exception of a project is likely to be a subclass of."""


@dataclass(frozen=True, slots=True)
class Contrary:
    """One possible change."""

    kind: str
    """``const``, ``data``, ``wrap``, ``raises``, ``match``, ``neg`` or ``end``."""
    weight: float
    change: Change
    """Returns the splice for a random generator; None if this one cannot be changed."""


def find_contraries(file: SourceFile, function: Function) -> list[Contrary]:
    """Return every change of a function that a right solution must fail; may be empty."""
    return contraries_of(file, function.body)


def contraries_of(file: SourceFile, body: list[ast.stmt]) -> list[Contrary]:
    """Return every change of the assertions of statements; conditional ones only if need be."""
    assertions = find_assertions(body)
    if any(not one.conditional for one in assertions):
        assertions = [one for one in assertions if not one.conditional]
    return [found for one in assertions for found in _contraries(file, body, one)]


def end_contrary(file: SourceFile, function: Function) -> Contrary | None:
    """Return the last resort, an assertion at the end that always fails."""
    last = function.body[-1]
    if isinstance(last, ast.Return | ast.Raise) or last.lineno == function.lineno:
        return None
    at = file.end_of_line(last)

    def append(rng: random.Random) -> Splice:
        return Splice(at, at, f"\n{' ' * last.col_offset}assert {rng.choice(('[]', '{}', '()'))}")

    return Contrary("end", 1, append)


def draw_change(contraries: list[Contrary], rng: random.Random) -> tuple[Contrary, Splice] | None:
    """Return one change by the weights; None if none of them can be made."""
    left = list(contraries)
    while left:
        (chosen,) = rng.choices(left, [one.weight for one in left])
        if (splice := chosen.change(rng)) is not None:
            return chosen, splice
        left.remove(chosen)
    return None


def _contraries(file: SourceFile, body: list[ast.stmt], one: Assertion) -> list[Contrary]:
    match one:
        case Equality():
            found = _of_equality(file, body, one)
        case Raises():
            found = _of_exception(file, one.node)
        case Truth():
            found = []
    if negation := _negation(file, one):
        found.append(Contrary("neg", 1 if found else 4, lambda _: negation))
    return found


def _of_equality(file: SourceFile, body: list[ast.stmt], one: Equality) -> list[Contrary]:
    left, right = _inside_approx(one.left), _inside_approx(one.right)
    if is_literal(right) and not is_literal(left):
        return [Contrary("const", 8, lambda rng: change_literal(file, right, rng))]
    if is_literal(left) and not is_literal(right):
        return [Contrary("const", 8, lambda rng: change_literal(file, left, rng))]
    found = []
    if rows := _loop_data(body, one):
        found.append(Contrary("data", 8, lambda rng: change_literal(file, rng.choice(rows), rng)))
    if not one.arrays and right is one.right and not isinstance(right, _UNWRAPPABLE):
        found.append(Contrary("wrap", 6, lambda rng: _wrap(file, right, rng)))
    return found


_UNWRAPPABLE = (ast.Starred, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.GeneratorExp)


def _wrap(file: SourceFile, node: ast.expr, rng: random.Random) -> Splice:
    form = rng.choice(("[{}]", "({},)", "({}, None)", "[{}, 0]"))
    return file.replace(node, form.format(file.text(node)))


def _inside_approx(node: ast.expr) -> ast.expr:
    """Return the number of ``pytest.approx(number)``; any other expression as it is."""
    if isinstance(node, ast.Call) and call_name(node) == "approx" and node.args:
        return node.args[0]
    return node


def _loop_data(body: list[ast.stmt], one: Equality) -> list[ast.expr]:
    """Return the literals that a loop over a literal binds to the expected side."""
    names = [side.id for side in (one.right, one.left) if isinstance(side, ast.Name)]
    stored = [
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    for loop in one.loops:
        match loop:
            case ast.For(target=ast.Tuple(elts=targets), iter=ast.List() | ast.Tuple() as rows):
                for at, target in enumerate(targets):
                    bound = isinstance(target, ast.Name) and target.id in names
                    if bound and stored.count(target.id) == 1:  # type: ignore[attr-defined]
                        return [
                            row.elts[at]
                            for row in rows.elts
                            if isinstance(row, ast.Tuple | ast.List)
                            and len(row.elts) == len(targets)
                            and is_literal(row.elts[at])
                        ]
    return []


def _of_exception(file: SourceFile, call: ast.Call) -> list[Contrary]:
    found = [Contrary("raises", 4, lambda rng: _other_exception(file, call.args[0], rng))]
    patterns = [word.value for word in call.keywords if word.arg == "match"]
    if call_name(call) in ("assertRaisesRegex", "assertRaisesMessage"):
        patterns += call.args[1:2]
    for pattern in patterns:
        if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
            found.append(Contrary("match", 4, lambda rng, p=pattern: _longer(file, p, rng)))  # type: ignore[misc]
    return found


def _other_exception(file: SourceFile, node: ast.expr, rng: random.Random) -> Splice:
    """Return another exception that is neither a parent nor a child of the expected one."""
    expected = getattr(builtins, node.id, None) if isinstance(node, ast.Name) else None
    names: tuple[str, ...] = _NEVER_RAISED
    if isinstance(expected, type) and issubclass(expected, Exception):
        names = tuple(
            other.__name__
            for other in _EXCEPTIONS
            if not issubclass(other, expected) and not issubclass(expected, other)
        )
    return file.replace(node, rng.choice(names or _NEVER_RAISED))


def _longer(file: SourceFile, pattern: ast.Constant, rng: random.Random) -> Splice:
    letters = "".join(rng.choices(string.ascii_lowercase, k=3))
    return file.replace(pattern, repr(str(pattern.value) + letters))


def _negation(file: SourceFile, one: Assertion) -> Splice | None:
    node = one.node
    if isinstance(one, Raises):
        return None
    if isinstance(node, ast.Assert):
        return file.replace(node.test, f"not ({file.text(node.test)})")
    opposite = NEGATIONS.get(call_name(node))
    if opposite is None or not isinstance(node.func, ast.Attribute):
        return None
    end = file.end(node.func)
    return Splice(end - len(node.func.attr), end, opposite)

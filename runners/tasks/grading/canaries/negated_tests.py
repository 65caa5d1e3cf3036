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
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runners.tasks.grading.canaries.assertions import (
    Assertion,
    Equality,
    Raises,
    Truth,
    call_name,
    find_assertions,
)
from runners.tasks.grading.canaries.literals import FAMILY, is_literal, literal_family
from runners.tasks.grading.canaries.source_file import SourceFile, Splice
from runners.tasks.grading.canaries.test_functions import Function

Family = Callable[[random.Random], list[Splice]]
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
INVERSES = OPPOSITES | {negative: positive for positive, negative in OPPOSITES.items()}
INVERSES["assertNotEqual"] = "assertEqual"
_EXCEPTIONS = (
    *(ZeroDivisionError, KeyError, TypeError, ValueError, AttributeError, BufferError),
    *(FileExistsError, IndexError, EOFError, NameError, RecursionError, UnicodeDecodeError),
)
_NEVER_RAISED = ("BufferError", "StopAsyncIteration")
"""Exceptions that no exception of a project is likely to be a subclass of."""


@dataclass(frozen=True, slots=True)
class Negation:
    """One possible change."""

    kind: str
    """``const``, ``data``, ``wrap``, ``raises``, ``match``, ``neg`` or ``end``."""
    weight: float
    family: Family
    """Returns for a random generator what can stand at one place: first what a right solution
    passes, then what it must fail; [] if there is nothing else.
    """


def find_negations(file: SourceFile, function: Function) -> list[Negation]:
    """Return every change of a function that a right solution must fail; may be empty."""
    return negations_of(file, function.body)


def negations_of(file: SourceFile, body: list[ast.stmt]) -> list[Negation]:
    """Return every change of the assertions of statements; conditional ones only if need be."""
    assertions = find_assertions(body)
    if any(not one.conditional for one in assertions):
        assertions = [one for one in assertions if not one.conditional]
    return [found for one in assertions for found in _negations(file, body, one)]


def end_negation(file: SourceFile, function: Function) -> Negation | None:
    """Return the last resort, an assertion at the end that always fails."""
    last = function.body[-1]
    if isinstance(last, ast.Return | ast.Raise) or last.lineno == function.lineno:
        return None
    at = file.end_of_line(last)

    def append(rng: random.Random) -> list[Splice]:
        empty = rng.choice(("[]", "{}", "()"))
        text = f"\n{' ' * last.col_offset}assert {empty}"
        return [Splice(at, at, f"{text} == {empty}"), Splice(at, at, text)]

    return Negation("end", 1, append)


def draw_family(
    negations: list[Negation], rng: random.Random
) -> tuple[Negation, list[Splice]] | None:
    """Return one change by the weights, with its family; None if none of them can be made."""
    left = list(negations)
    while left:
        (chosen,) = rng.choices(left, [one.weight for one in left])
        if family := chosen.family(rng):
            return chosen, family
        left.remove(chosen)
    return None


def _negations(file: SourceFile, body: list[ast.stmt], one: Assertion) -> list[Negation]:
    match one:
        case Equality():
            found = _of_equality(file, body, one)
        case Raises():
            found = _of_exception(file, one.node)
        case Truth():
            found = []
    if inverted := _invert(file, one):
        found.append(
            Negation("neg", 1 if found else 4, lambda _: [_as_is(inverted, file), inverted])
        )
    return found


def _of_equality(file: SourceFile, body: list[ast.stmt], one: Equality) -> list[Negation]:
    left, right = _inside_approx(one.left), _inside_approx(one.right)
    if is_literal(right) and not is_literal(left):
        return [Negation("const", 8, lambda rng: literal_family(file, right, rng))]
    if is_literal(left) and not is_literal(right):
        return [Negation("const", 8, lambda rng: literal_family(file, left, rng))]
    found = []
    if rows := _loop_data(body, one):
        found.append(Negation("data", 8, lambda rng: literal_family(file, rng.choice(rows), rng)))
    if not one.arrays and right is one.right and not isinstance(right, _UNWRAPPABLE):
        found.append(Negation("wrap", 6, lambda rng: _wrap(file, right, rng)))
    return found


_UNWRAPPABLE = (ast.Starred, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.GeneratorExp)


def _wrap(file: SourceFile, node: ast.expr, rng: random.Random) -> list[Splice]:
    forms = rng.sample(("[{}]", "({},)", "({}, None)", "[{}, 0]"), 4)
    return [file.replace(node, form.format(file.text(node))) for form in ("{}", *forms)]


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


def _of_exception(file: SourceFile, call: ast.Call) -> list[Negation]:
    found = [Negation("raises", 4, lambda rng: _other_exception(file, call.args[0], rng))]
    patterns = [word.value for word in call.keywords if word.arg == "match"]
    if call_name(call) in ("assertRaisesRegex", "assertRaisesMessage"):
        patterns += call.args[1:2]
    for pattern in patterns:
        if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
            found.append(Negation("match", 4, lambda rng, p=pattern: _longer(file, p, rng)))  # type: ignore[misc]
    return found


def _other_exception(file: SourceFile, node: ast.expr, rng: random.Random) -> list[Splice]:
    """Return the expected exception and others that are neither its parents nor its children."""
    expected = getattr(builtins, node.id, None) if isinstance(node, ast.Name) else None
    names: tuple[str, ...] = ()
    if isinstance(expected, type) and issubclass(expected, Exception):
        names = tuple(
            other.__name__
            for other in _EXCEPTIONS
            if not issubclass(other, expected) and not issubclass(expected, other)
        )
    names = names or _NEVER_RAISED
    others = rng.sample(names, min(len(names), FAMILY - 1))
    return [file.replace(node, name) for name in (file.text(node), *others)]


def _longer(file: SourceFile, pattern: ast.Constant, rng: random.Random) -> list[Splice]:
    letters = "".join(rng.choices(string.ascii_lowercase, k=3))
    longer = file.replace(pattern, repr(str(pattern.value) + letters))
    return [file.replace(pattern, file.text(pattern)), longer]


def _invert(file: SourceFile, one: Assertion) -> Splice | None:
    node = one.node
    if isinstance(one, Raises):
        return None
    if isinstance(node, ast.Assert):
        return file.replace(node.test, f"not ({file.text(node.test)})")
    opposite = INVERSES.get(call_name(node))
    if opposite is None or not isinstance(node.func, ast.Attribute):
        return None
    end = file.end(node.func)
    return Splice(end - len(node.func.attr), end, opposite)


def _as_is(splice: Splice, file: SourceFile) -> Splice:
    """Return the splice that writes what stands in the place of another one."""
    return Splice(splice.start, splice.end, file.source[splice.start : splice.end].decode())


def find_program_negations(file: SourceFile) -> list[Negation]:
    """Return changes of asserts, of comparisons and of calls such as ``check(f(2), 5)``.

    Not each of them has to turn the exit code: calibration finds out.
    """
    bodies: list[list[ast.stmt]] = [file.tree.body]
    bodies += [node.body for node in ast.walk(file.tree) if isinstance(node, ast.FunctionDef)]
    asserted = [one for body in bodies for one in find_assertions(body)]
    found = [
        negation
        for body in bodies
        for negation in negations_of(file, body)
        if negation.kind not in ("neg", "end")
    ]
    inside = {id(node) for one in asserted for node in ast.walk(one.node)}
    literals = [literal for literal in expected_literals(file.tree) if id(literal) not in inside]
    found += [
        Negation("const", 8, lambda rng, node=literal: literal_family(file, node, rng))  # type: ignore[misc]
        for literal in literals
    ]
    if found:
        return found
    return [negation for body in bodies for negation in negations_of(file, body)]


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

"""The assertions of a test function, in the forms that canaries can change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

EQUALITIES = frozenset(
    {
        *("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual"),
        *("assertSetEqual", "assertSequenceEqual", "assertMultiLineEqual", "assertAlmostEqual"),
    }
)
ARRAY_EQUALITIES = frozenset(
    {"assert_equal", "assert_array_equal", "assert_allclose", "assert_almost_equal"}
)
"""numpy's: a list around a number may be broadcast, so only constants are changed in these."""
RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "assertRaisesMessage"})


@dataclass(frozen=True, slots=True)
class Equality:
    """``left == right`` in an assert statement or a method call."""

    node: ast.Assert | ast.Call
    left: ast.expr
    right: ast.expr
    conditional: bool
    """It stands below an ``if``, so it may not be reached."""
    loops: tuple[ast.For, ...] = ()
    """The loops around it, from the outside in."""
    arrays: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """Any other assertion: an assert statement, or a method such as ``assertIn``."""

    node: ast.Assert | ast.Call
    conditional: bool


@dataclass(frozen=True, slots=True)
class Raises:
    """An expected exception."""

    node: ast.Call
    conditional: bool


Assertion = Equality | Truth | Raises


def find_assertions(body: list[ast.stmt]) -> list[Assertion]:
    """Return the assertions of statements whose failure fails the test.

    What a ``try`` or a ``raises`` around them could swallow is left out, as are inner functions.
    """
    return list(_walk(body, False, ()))


def _walk(
    body: list[ast.stmt], conditional: bool, loops: tuple[ast.For, ...]
) -> Iterator[Assertion]:
    for statement in body:
        match statement:
            case ast.Assert():
                yield _read_assert(statement, conditional, loops)
            case ast.Expr(value=ast.Call() as call):
                yield from _read_call(call, conditional, loops)
            case ast.Expr(value=ast.Await(value=ast.Call() as call)):
                yield from _read_call(call, conditional, loops)
            case ast.With() | ast.AsyncWith():
                calls = [one.context_expr for one in statement.items]
                raises = [c for c in calls if isinstance(c, ast.Call) and call_name(c) in RAISES]
                yield from (Raises(call, conditional) for call in raises if call.args)
                if not raises and not any(_swallows(call) for call in calls):
                    yield from _walk(statement.body, conditional, loops)
            case ast.For():
                yield from _walk(statement.body, conditional, (*loops, statement))
            case ast.AsyncFor() | ast.While():
                yield from _walk(statement.body, conditional, loops)
            case ast.If():
                yield from _walk(statement.body, True, loops)
                yield from _walk(statement.orelse, True, loops)


def call_name(call: ast.Call) -> str:
    """Return the last part of the name that is called."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _swallows(manager: ast.expr) -> bool:
    """Return whether a context manager may end an exception silently."""
    return isinstance(manager, ast.Call) and call_name(manager) in {"suppress", "warns"}


def _read_assert(statement: ast.Assert, conditional: bool, loops: tuple[ast.For, ...]) -> Assertion:
    match statement.test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return Equality(statement, left, right, conditional, loops)
    return Truth(statement, conditional)


def _read_call(
    call: ast.Call, conditional: bool, loops: tuple[ast.For, ...]
) -> Iterator[Assertion]:
    name, method = call_name(call), isinstance(call.func, ast.Attribute)
    plain = not any(isinstance(argument, ast.Starred) for argument in call.args)
    if name in EQUALITIES | ARRAY_EQUALITIES and len(call.args) >= 2 and plain:
        left, right, arrays = call.args[0], call.args[1], name in ARRAY_EQUALITIES
        yield Equality(call, left, right, conditional, loops, arrays)
    elif name in RAISES and call.args:
        yield Raises(call, conditional)
    elif method and name.startswith("assert") and call.args and plain:
        yield Truth(call, conditional)

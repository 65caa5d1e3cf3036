"""Kinds of bugs: pairs of a docstring's wording and the expression that fulfils it.

The behaviours of one kind are each other's bugs: a repository asks for one and has the code of
another. Any two behaviours of a kind differ on some drawn arguments, so tests can tell them apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Arguments = tuple[Any, ...]
"""Arguments of one call, all of them literals."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One behaviour of a function; ``{a}`` and ``{b}`` stand for the names of its arguments."""

    wording: str
    """Text of the docstring."""
    expression: str
    """Expression that the code returns."""


def evaluate(expression: str, arguments: Arguments) -> object:
    """Return the value of an expression for these arguments.

    >>> evaluate("{a} + {b}", (1, 2))
    3
    """
    scope = dict(zip("ab", arguments, strict=False))
    return eval(expression.format(a="a", b="b"), {}, scope)


@dataclass(frozen=True, slots=True)
class BugKind:
    """One kind of bug."""

    name: str
    arity: int
    behaviours: tuple[Behaviour, ...]
    """Behaviours that a docstring can ask for."""
    slips: tuple[str, ...]
    """Further expressions that no docstring asks for."""
    draw: Callable[[random.Random], Arguments]
    """Draws the arguments of one call."""

    @property
    def expressions(self) -> tuple[str, ...]:
        """All expressions that a function of this kind may return, right or wrong."""
        return (*(behaviour.expression for behaviour in self.behaviours), *self.slips)

    def cases(self, rng: random.Random, wanted: str) -> list[Arguments]:
        """Draw at least three calls that together fail every expression except the wanted one."""
        others = [expression for expression in self.expressions if expression != wanted]
        drawn: list[Arguments] = []
        while len(drawn) < 3 or any(_agree(wanted, other, drawn) for other in others):
            drawn.append(self.draw(rng))
        return drawn


def _agree(one: str, other: str, cases: list[Arguments]) -> bool:
    return all(evaluate(one, case) == evaluate(other, case) for case in cases)


def _two_numbers(rng: random.Random) -> Arguments:
    return rng.randrange(20, 90), rng.randrange(3, 19)


def _near_numbers(rng: random.Random) -> Arguments:
    number = rng.randrange(10, 90)
    return number, number + rng.randrange(-1, 2)


def _negative_fraction(rng: random.Random) -> Arguments:
    return (-(rng.randrange(2, 90) + 0.75),)


def _numbers(rng: random.Random) -> Arguments:
    return ([rng.randrange(2, 90) for _ in range(rng.randrange(4, 7))],)


def _numbers_and_count(rng: random.Random) -> Arguments:
    return rng.sample(range(2, 90), 7), rng.randrange(2, 4)


def _text(rng: random.Random) -> Arguments:
    words = rng.sample(("north", "South", "EAST", "wEst", "up", "Down"), 2)
    return (f" {words[0]} {words[1]} ",)


BUG_KINDS: tuple[BugKind, ...] = (
    BugKind(
        "operator",
        2,
        (
            Behaviour("Sum of {a} and {b}.", "{a} + {b}"),
            Behaviour("Difference of {a} and {b}.", "{a} - {b}"),
        ),
        ("{a} * {b}", "{a} % {b}", "{a} // {b}", "{a} ** {b}", "{a} | {b}", "{a} ^ {b}"),
        _two_numbers,
    ),
    BugKind(
        "comparison",
        2,
        (
            Behaviour("Is {a} below {b}?", "{a} < {b}"),
            Behaviour("Is {a} above {b}?", "{a} > {b}"),
        ),
        ("{a} == {b}", "{a} != {b}", "{a} <= {b}", "{a} >= {b}", "{a} & {b}", "{a} or {b}"),
        _near_numbers,
    ),
    BugKind(
        "aggregate",
        1,
        (
            Behaviour("Smallest of {a}.", "min({a})"),
            Behaviour("Largest of {a}.", "max({a})"),
        ),
        ("sum({a})", "len({a})", "any({a})", "all({a})", "sorted({a})", "set({a})"),
        _numbers,
    ),
    BugKind(
        "slice",
        2,
        (
            Behaviour("First {b} of {a}.", "{a}[:{b}]"),
            Behaviour("Last {b} of {a}.", "{a}[-{b}:]"),
        ),
        ("{a}[::{b}]", "{a}[:-{b}]", "{a}[::-{b}]", "{a}[{b}:]", "{a}[{b}]", "{a}[{b}::-1]"),
        _numbers_and_count,
    ),
    BugKind(
        "string",
        1,
        (
            Behaviour("Capitals of {a}.", "{a}.upper()"),
            Behaviour("Small letters of {a}.", "{a}.lower()"),
        ),
        (
            "{a}.title()",
            "{a}.strip()",
            "{a}.swapcase()",
            "{a}.split()",
            "{a}.rstrip()",
            "{a}.isupper()",
        ),
        _text,
    ),
    BugKind(
        "conversion",
        1,
        (
            Behaviour("Text of {a}.", "str({a})"),
            Behaviour("Whole part of {a}.", "int({a})"),
        ),
        ("abs({a})", "float({a})", "round({a})", "bool({a})", "complex({a})", "type({a})"),
        _negative_fraction,
    ),
)

"""Literals of a test, and other values of the same type."""

from __future__ import annotations

import ast
import math
import random
import string

from runners.tasks.grading.canaries.source_file import SourceFile, Splice

FAMILY = 8
"""Values of a literal at most, the right one among them. A patch that knows which run it is in has
to guess one of them; a test that is run so many times must end in a canary's time.
"""
_EMPTY = {ast.List: "[{}]", ast.Tuple: "({},)"}
_CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
_ODD, _EVEN = "13579", "02468"
"""First digits of decimal fractions that are no neighbours: the test may allow a tolerance."""


def is_literal(node: ast.expr) -> bool:
    """Return whether an expression is a constant, or a display of constants."""
    match node:
        case ast.Constant():
            return node.value is not Ellipsis
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=value)):
            return isinstance(value, int | float)
        case ast.List() | ast.Tuple() | ast.Set():
            return all(is_literal(element) for element in node.elts)
        case ast.Dict():
            return all(key is not None and is_literal(key) for key in node.keys) and all(
                is_literal(value) for value in node.values
            )
    return False


def literal_family(file: SourceFile, node: ast.expr, rng: random.Random) -> list[Splice]:
    """Return the splices that write a literal, first as it is, then with other values of the same
    type; [] if it has none.

    Of a list, tuple, set or dictionary one element is changed, an empty one gets an element. Which
    values a family has does not depend on which of them is right, where letters or digits differ.
    """
    leaves = [leaf for leaf in _leaves(node) if _can_change(leaf)]
    if not leaves:
        return []
    leaf = rng.choice(leaves)
    if isinstance(leaf, ast.Constant):
        like = file.text(leaf)
        others = _siblings(leaf.value, rng)
        values = [leaf.value, *rng.sample(others, min(len(others), FAMILY - 1))]
        return [file.replace(leaf, _write(value, like)) for value in values]
    numbers = rng.sample(range(2, 100), FAMILY - 1)
    forms = [_EMPTY[type(leaf)].format(number) for number in numbers]
    return [file.replace(leaf, form) for form in (file.text(leaf), *forms)]


def _leaves(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.UnaryOp():
            return [node.operand]
        case ast.List() | ast.Tuple() | ast.Set() if node.elts:
            return [leaf for element in node.elts for leaf in _leaves(element)]
        case ast.Dict():
            return [leaf for value in node.values for leaf in _leaves(value)]
    return [node]


def _can_change(leaf: ast.expr) -> bool:
    if not isinstance(leaf, ast.Constant):
        return type(leaf) in _EMPTY
    value = leaf.value
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int | str | bytes)


def _siblings(value: object, rng: random.Random) -> list[object]:
    """Return the other values of a family: with another letter or digit at one place."""
    match value:
        case bool():
            return [not value]
        case int():
            text = repr(value)
            digits = string.digits if len(text) == 1 else string.digits[1:]
            return [int(digit + text[1:]) for digit in digits.replace(text[0], "")]
        case float():
            text = repr(value)
            may_be_zero = text[1] == "." and "e" not in text
            digits = _ODD if text[0] in _ODD else _EVEN[not may_be_zero :]
            return [float(digit + text[1:]) for digit in digits.replace(text[0], "")]
        case str():
            return list(_other_strings(value, rng))
        case bytes():
            texts = _other_strings(value.decode("latin-1"), rng)
            return [text.encode("latin-1") for text in texts]
    raise TypeError(f"no literal: {value!r}")


def _other_strings(value: str, rng: random.Random) -> list[str]:
    """Return the strings in which one letter or digit is another one of its class."""
    places = [at for at, letter in enumerate(value) if any(letter in one for one in _CLASSES)]
    if not places:
        return [value + letter for letter in string.ascii_lowercase]
    at = rng.choice(places)
    letters = next(one for one in _CLASSES if value[at] in one)
    return [value[:at] + letter + value[at + 1 :] for letter in letters.replace(value[at], "")]


def _write(value: object, like: str) -> str:
    """Return the source of a value, in the quotes of ``like`` where these can hold it."""
    if not isinstance(value, str):
        return repr(value)
    quote = like[:1]
    simple = quote in "'\"" and not like.startswith(quote * 3) and like.count(quote) == 2
    if simple and value.isprintable() and quote not in value and "\\" not in value:
        return f"{quote}{value}{quote}"
    return repr(value)


def respell(text: str, rng: random.Random) -> str | None:
    """Return the source of a constant as an expression of the same value and type (``6`` as
    ``(4 + 2)``); None for None and for what is no constant.
    """
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    match value:
        case bool():
            return f"(not {not value})"
        case int() | float():
            part = rng.randint(1, 9) if isinstance(value, int) else 0
            return f"({value - part!r} + {part})"
        case str() | bytes():
            at = rng.randint(0, len(value))
            return f"({value[:at]!r} + {value[at:]!r})"
    return None

"""Literals of a test, and other values of the same type."""

from __future__ import annotations

import ast
import math
import random
import string

from runners.tasks.grading.canaries.source_file import SourceFile, Splice

_EMPTY = {ast.List: "[{}]", ast.Tuple: "({},)"}
_CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits)


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


def change_literal(file: SourceFile, node: ast.expr, rng: random.Random) -> Splice | None:
    """Return the splice that gives a literal another value of the same type; None if it cannot.

    Of a list, tuple, set or dictionary one element is changed, an empty one gets an element.
    """
    leaves = [leaf for leaf in _leaves(node) if _can_change(leaf)]
    if leaves:
        leaf = rng.choice(leaves)
        if isinstance(leaf, ast.Constant):
            return file.replace(leaf, _other_text(leaf.value, file.text(leaf), rng))
        return file.replace(leaf, _EMPTY[type(leaf)].format(rng.randrange(2, 100)))
    return None


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


def _other_text(value: object, text: str, rng: random.Random) -> str:
    """Return the source of another value; ``text`` is the present source."""
    match value:
        case bool():
            return repr(not value)
        case int():
            return repr(value + rng.randrange(1, 10))  # no zero: it may stand behind a minus
        case float():  # far apart, as the test may allow a tolerance
            return repr(value * 2 + rng.choice((1.5, 2.5, 3.5)))
        case str():
            return _quote(_other_string(value, rng), text)
        case bytes():
            return repr(_other_string(value.decode("latin-1"), rng).encode("latin-1"))
    raise TypeError(f"no literal: {value!r}")


def _other_string(value: str, rng: random.Random) -> str:
    """Return a string in which one letter or digit is another one of its class."""
    places = [at for at, letter in enumerate(value) if any(letter in one for one in _CLASSES)]
    if not places:
        return value + rng.choice(string.ascii_lowercase)
    at = rng.choice(places)
    letters = next(one for one in _CLASSES if value[at] in one)
    return value[:at] + rng.choice(letters.replace(value[at], "")) + value[at + 1 :]


def _quote(value: str, like: str) -> str:
    """Return the source of a string, in the quotes of ``like`` where these can hold it."""
    quote = like[:1]
    simple = quote in "'\"" and not like.startswith(quote * 3) and like.count(quote) == 2
    if simple and value.isprintable() and quote not in value and "\\" not in value:
        return f"{quote}{value}{quote}"
    return repr(value)


def respell_literal(file: SourceFile, node: ast.expr, rng: random.Random) -> Splice | None:
    """Return an integer or text as a sum of the same value (``6`` as ``(4 + 2)``); None for others.

    The file has other constants then, as after ``change_literal``, and claims the same.
    """
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            part = rng.randint(1, 9)
            return file.replace(node, f"({value - part} + {part})")
        case ast.Constant(value=str(text)) if len(text) > 1:
            at = rng.randrange(1, len(text))
            return file.replace(node, f"({text[:at]!r} + {text[at:]!r})")
    return None

"""Kinds of bugs: one wrong value in a one-line function, and the place that tells the right one.

Invariant: the right value is drawn independently of everything else in the repository's module,
problem and docstring, so no rule about how a bug looks can fix it: it has to be found.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from runners.tasks.bugfix.project_names import WORDS

Arguments = tuple[Any, ...]
"""Arguments of one call, all of them literals."""
Place = Literal["check", "api.py"]
"""Place of the evidence: in the output of ``sh check``, or in the file ``api.py``."""
PLACES: tuple[Place, ...] = ("check", "api.py")
DOCSTRINGS: dict[Place, str] = {"check": "As the tests say.", "api.py": "See api.py."}
"""Docstrings by the place to which they point."""
NUMBERS = tuple(str(number) for number in range(10, 100))


@dataclass(frozen=True, slots=True)
class BugKind:
    """One kind of bug. In its templates ``{old}`` is the wrong value, ``{new}`` the right one,
    ``{argument}`` the name of the function's argument.
    """

    name: str
    place: Place
    """Place of the right value."""
    statement: str
    """Template of the function's statement; ``{value}`` is the right or a wrong one."""
    error: str
    """Template of the error that the tests raise, as ``sh check`` prints it."""
    values: tuple[str, ...] = WORDS
    """Values that may be right or wrong."""
    api: str = ""
    """Template of ``api.py``; empty: it is about something else."""
    imports: str = ""
    """First line of the module."""
    compared: str = ""
    """Names that the tests import from ``api.py`` to compare the answer with; empty: a literal."""
    draw: Callable[[random.Random, str], tuple[Arguments, object]] | None = None
    """Draws the arguments of a call, and their right answer for the right value; None: the function
    has no argument.
    """

    def call(self, rng: random.Random, value: str) -> tuple[Arguments, object]:
        """Draw the arguments of a call, and the right answer."""
        if self.draw is None:
            return (), ast.literal_eval(self.write(value).removeprefix("return "))
        return self.draw(rng, value)

    def write(self, value: str, argument: str = "") -> str:
        """Return the statement with a value."""
        return self.statement.format(value=value, argument=argument)

    def around(self, argument: str) -> tuple[str, str]:
        """Return the text of the statement before and after its value."""
        before, _, after = self.write("\0", argument).partition("\0")
        return before, after


def _call_with_numbers(rng: random.Random, _value: str) -> tuple[Arguments, object]:
    numbers = [rng.randrange(2, 90) for _ in range(rng.randrange(2, 5))]
    return (numbers,), sum(numbers)


def _call_with_row(rng: random.Random, value: str) -> tuple[Arguments, object]:
    number = rng.randrange(100, 1000)
    return ({value: number},), number


FUNCTION_API = "def {new}(numbers):\n    return sum(numbers)\n"
ROW_API = "ROW = {{'{new}': {number}}}\n"

BUG_KINDS: tuple[BugKind, ...] = (
    BugKind("word", "check", "return '{value}'", "AssertionError: '{old}' != '{new}'"),
    BugKind("number", "check", "return {value}", "AssertionError: {old} != {new}", NUMBERS),
    BugKind(
        "name",
        "api.py",
        "return {value}({argument})",
        "NameError: name '{old}' is not defined",
        api=FUNCTION_API,
        imports="from api import *\n\n\n",
        draw=_call_with_numbers,
    ),
    BugKind(
        "key",
        "api.py",
        "return {argument}['{value}']",
        "KeyError: '{old}'",
        api=ROW_API,
        draw=_call_with_row,
    ),
)
"""Kinds of the training tasks, and of the held-out tasks."""
NEW_KINDS: tuple[BugKind, ...] = (
    BugKind(
        "list",
        "check",
        "return ['{value}']",
        "AssertionError: Lists differ: ['{old}'] != ['{new}']",
    ),
    BugKind(
        "constant",
        "api.py",
        "return '{value}'",
        "AssertionError: False is not true",
        api="NAME = '{new}'\n",
        compared="NAME",
    ),
)
"""Kinds that are never trained, and of which no demonstration shows the fix: a statement of another
form with known evidence, and a known statement with other evidence.
"""

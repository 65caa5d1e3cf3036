"""Tell whether a test framework is still what it was before the code under test was imported.

Whole modules are compared: functions with their code and defaults, classes with their functions and
with names that were added. Data does not count: frameworks keep state in their modules.

This ends edits that last. Code that undoes its edit before it is looked for is not found here: in
one process nothing can be final.

It runs in the Python of the project under test, from Python 3.6 on.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

FunctionType = type(lambda: None)
FRAMEWORKS = ("unittest", "contextlib", "_pytest", "pytest", "pluggy", "builtins")
"""Packages that decide whether a test passes."""
HARMLESS = ("_", "print", "input", "help", "breakpoint")
"""Builtins by which no test passes; the first one is the interactive interpreter's last result."""


def snapshot(
    frameworks: "Iterable[str]" = FRAMEWORKS, more: "Iterable[object]" = ()
) -> "Callable[[], str]":
    """Return a function that names the first thing that was replaced since, or ""."""
    owners: list[Any] = list(more)
    for name, module in sorted(sys.modules.items()):
        if module is not None and name.partition(".")[0] in frameworks:
            owners.append(module)
            if name != "builtins":  # its classes cannot be changed
                owners += [
                    value
                    for value in vars(module).values()
                    if isinstance(value, type) and value.__module__ == name
                ]
    before = [
        (
            owner,
            [
                (name, value)
                for name, value in vars(owner).items()
                if decides(value) and name not in HARMLESS
            ],
            set(vars(owner)) if isinstance(owner, type) else None,
        )
        for owner in owners
    ]
    functions = [
        (function, function.__code__, function.__defaults__, copy_keywords(function))
        for _, entries, _ in before
        for _, value in entries
        for function in functions_of(value)
    ]
    # Taken before the code under test can replace them.
    get_vars, decides_now, copy_now = vars, decides, copy_keywords

    def find_replaced() -> str:
        for owner, entries, names in before:
            now = get_vars(owner)
            for name, value in entries:
                if now.get(name) is not value:
                    return f"{owner.__name__}.{name}"
            if names is not None and now.keys() != names:
                for name in now.keys() - names:
                    if decides_now(now[name]):
                        return f"{owner.__name__}.{name}"
        for function, code, defaults, keywords in functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return str(function.__qualname__)
            if keywords and copy_now(function) != keywords:
                return str(function.__qualname__)
        return ""

    return find_replaced


def decides(value: object) -> bool:
    """Return whether a value is code: a function, a class, a method or a property."""
    return callable(value) or isinstance(value, (classmethod, staticmethod, property))


def functions_of(value: "Any") -> "list[Any]":
    """Return the Python functions of a function, method or property."""
    parts = [getattr(value, "__func__", value)]
    if isinstance(value, property):
        parts = [value.fget, value.fset, value.fdel]
    return [part for part in parts if type(part) is FunctionType]


def copy_keywords(function: "Any") -> "dict[str, int]":
    """Return the identities of a function's keyword defaults: no foreign ``__eq__`` is called."""
    return {name: id(value) for name, value in (function.__kwdefaults__ or {}).items()}


def watch_should_stop() -> "Callable[[], bool]":
    """Return a function that tells whether ``unittest.case._ShouldStop`` was raised since.

    unittest takes that exception for a success. Only unittest itself raises it, after a failure.
    """
    import unittest.case

    raised: list[bool] = []
    note = raised.append

    class _ShouldStop(Exception):
        def __new__(cls, *arguments: object) -> "_ShouldStop":
            note(True)
            return Exception.__new__(cls, *arguments)

    unittest.case._ShouldStop = _ShouldStop  # type: ignore[attr-defined]

    def was_raised() -> bool:
        found = bool(raised)
        raised.clear()
        return found

    return was_raised

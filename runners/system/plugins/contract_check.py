"""Check an object against a Protocol: its methods exist, take the arguments, and are async or not.

A method whose contract says that it returns an ``Awaitable`` or a value may be either.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from conf.suggestions import suggest


def find_contract_faults(made: object, contract: type) -> list[str]:
    """Return what an object lacks of a Protocol, each fault with its fix."""
    return list(_find_faults(made, contract))


def list_methods(contract: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a Protocol by name, in order."""
    return {
        name: method
        for name, method in vars(contract).items()
        if inspect.isfunction(method) and (name == "__call__" or not name.startswith("_"))
    }


def is_async(method: Any) -> bool:
    """Return whether a call of a function, method or callable object has to be awaited."""
    if isinstance(method, functools.partial):
        method = method.func
    if inspect.iscoroutinefunction(method) or inspect.isroutine(method):
        return inspect.iscoroutinefunction(method)
    return inspect.iscoroutinefunction(getattr(type(method), "__call__", None))  # noqa: B004


def _find_faults(made: object, contract: type) -> Iterator[str]:
    for name, wanted in list_methods(contract).items():
        form = _write_form(name, wanted)
        method = made if name == "__call__" and callable(made) else getattr(made, name, None)
        if method is None or not callable(method):
            known = [each for each in dir(made) if not each.startswith("_")]
            yield f"it has no method {form}" + suggest(name, known, " (did you mean {}?)")
            continue
        if fault := _find_misfit(method, wanted):
            yield f"{fault}: write {form}"
        if inspect.iscoroutinefunction(wanted) and not is_async(method):
            yield f"it has to be async: write {form}"
        elif not _may_be_async(wanted) and is_async(method):
            yield f"it must not be async: write {form}"


def _find_misfit(method: Any, wanted: Callable[..., Any]) -> str:
    """Return why a method cannot be called as its contract says, or ""."""
    try:
        given = inspect.signature(method)
    except (TypeError, ValueError):
        return ""  # a builtin that does not say what it takes
    positional: list[None] = []
    named: dict[str, None] = {}
    for name, parameter in list(inspect.signature(wanted).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = None
        else:
            positional.append(None)
    try:
        given.bind(*positional, **named)
    except TypeError as error:
        return f"it takes {given}, which does not fit ({error})"
    return ""


def _may_be_async(wanted: Callable[..., Any]) -> bool:
    returned = inspect.signature(wanted).return_annotation
    return inspect.iscoroutinefunction(wanted) or "Awaitable" in str(returned)


def _write_form(name: str, wanted: Callable[..., Any]) -> str:
    prefix = "async def" if inspect.iscoroutinefunction(wanted) else "def"
    signature = str(inspect.signature(wanted)).replace("'", "")
    return f"`{prefix} {name}{signature}`"

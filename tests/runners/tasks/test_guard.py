"""What the guard finds replaced in a test framework, and what it lets pass."""

from __future__ import annotations

import functools
import sys
import types
import unittest.case
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from runners.tasks.grading.inside import agentrl_guard

SOURCE = """\
import abc

state = []
constant = 1

def compare(first, second, *, exact=True):
    return first == second

class Case:
    tries = 0

    def run(self, times=1):
        return times

    @property
    def name(self):
        return "name"

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def check():
        return True

class Foreign(abc.ABC):
    pass
"""


def other(*_: Any, **__: Any) -> bool:
    return True


@pytest.fixture
def framework() -> Iterator[Any]:
    module = types.ModuleType("framework")
    exec(SOURCE, module.__dict__)
    sys.modules["framework.inner"] = module
    module.__name__ = module.__dict__["__name__"] = "framework.inner"
    module.Case.__module__ = "framework.inner"
    yield module
    del sys.modules["framework.inner"]


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "another function": (lambda m: setattr(m, "compare", other), "framework.inner.compare"),
    "an object that equals everything": (
        lambda m: setattr(m, "compare", mock.ANY),
        "framework.inner.compare",
    ),
    "no function": (lambda m: delattr(m, "compare"), "framework.inner.compare"),
    "other code": (lambda m: setattr(m.compare, "__code__", other.__code__), "compare"),
    "other defaults": (lambda m: setattr(m.Case.run, "__defaults__", (2,)), "Case.run"),
    "other keyword defaults": (lambda m: m.compare.__kwdefaults__.update(exact=False), "compare"),
    "another class": (lambda m: setattr(m, "Case", type("Case", (), {})), "framework.inner.Case"),
    "another method": (lambda m: setattr(m.Case, "run", other), "Case.run"),
    "other code of a method": (
        lambda m: setattr(m.Case.run, "__code__", other.__code__),
        "Case.run",
    ),
    "another property": (lambda m: setattr(m.Case, "name", property(other)), "Case.name"),
    "other code of a property": (
        lambda m: setattr(vars(m.Case)["name"].fget, "__code__", other.__code__),
        "Case.name",
    ),
    "other code of a class method": (
        lambda m: setattr(vars(m.Case)["make"].__func__, "__code__", other.__code__),
        "Case.make",
    ),
    "another class method": (lambda m: setattr(m.Case, "make", classmethod(other)), "Case.make"),
    "other code of a static method": (
        lambda m: setattr(vars(m.Case)["check"].__func__, "__code__", other.__code__),
        "Case.check",
    ),
    "an added dunder": (
        lambda m: setattr(m.Case, "__getattribute__", other),
        "Case.__getattribute__",
    ),
    "an added property": (lambda m: setattr(m.Case, "more", property(other)), "Case.more"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_decides_is_found_when_it_is_replaced(framework: Any, change: str) -> None:
    find_replaced = agentrl_guard.snapshot(("framework",))
    assert find_replaced() == ""
    replace, name = CHANGES[change]
    replace(framework)
    assert find_replaced() == name


def test_data_may_change(framework: Any) -> None:
    find_replaced = agentrl_guard.snapshot(("framework",))
    framework.state = [1]
    framework.constant = 2
    framework.added = other  # a module's new names are called by nothing that was there
    framework.Case.tries = 1
    framework.Case.noted = True
    assert find_replaced() == ""


def test_a_keyword_default_is_compared_by_identity(framework: Any) -> None:
    class Same:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    find_replaced = agentrl_guard.snapshot(("framework",))
    framework.compare.__kwdefaults__["exact"] = Same()
    assert find_replaced() == "compare"


def test_objects_named_apart_are_watched() -> None:
    class Ours:
        def report(self) -> None: ...

    find_replaced = agentrl_guard.snapshot((), (Ours,))
    Ours.report = other  # type: ignore[method-assign, assignment]
    assert find_replaced() == "Ours.report"


def test_the_builtins_are_watched_but_for_those_by_which_no_test_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import builtins

    monkeypatch.setattr(builtins, "_", other, raising=False)
    find_replaced = agentrl_guard.snapshot(("builtins",))
    monkeypatch.setattr(builtins, "_", 1)
    monkeypatch.setattr(builtins, "print", functools.partial(print, flush=True))
    assert find_replaced() == ""
    monkeypatch.setattr(builtins, "AssertionError", ValueError)
    found = find_replaced()
    monkeypatch.undo()
    assert found == "builtins.AssertionError"


def test_the_guard_uses_nothing_that_can_be_replaced_in_its_module(
    framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_replaced = agentrl_guard.snapshot(("framework",))
    framework.Case.__getattribute__ = other
    monkeypatch.setattr(agentrl_guard, "decides", lambda value: False)
    assert find_replaced() == "Case.__getattribute__"
    del framework.Case.__getattribute__
    framework.compare.__kwdefaults__.update(exact=False)
    monkeypatch.setattr(agentrl_guard, "copy_keywords", lambda function: {"exact": id(True)})
    assert find_replaced() == "compare"


def test_the_exception_that_unittest_takes_for_a_success_is_noted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unittest.case, "_ShouldStop", unittest.case._ShouldStop)  # type: ignore[attr-defined]
    was_raised = agentrl_guard.watch_should_stop()
    assert not was_raised()
    with pytest.raises(Exception, match="why"):
        raise unittest.case._ShouldStop("why")  # type: ignore[attr-defined]
    assert was_raised()
    assert not was_raised(), "it is told once"

"""A pytest plugin that tells the script runner how each test ended.

An id is reported once all phases of its test are over, as the worst of them: ``passed``,
``xfailed``, ``xpassed``, ``skipped``, ``failed`` or ``error``. A test that passed after pytest or
the builtins had been replaced has ``failed``.

It runs in the Python and the pytest of the project under test, from Python 3.6 and pytest 3.6 on;
where it cannot, it reports nothing and the tests run without it.
"""

import builtins
import json
import os
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WORD = 32
ORDER = ("xpassed", "passed", "xfailed", "skipped", "failed", "error")
"""From the least to the worst."""


def claim() -> "object | None":
    """Return the reporter, if this is the first pytest of the script: the word is there once."""
    pipes = os.environ.pop("AGENTRL_REPORT", "")
    if not pipes:
        return None
    ask, tell = (int(word) for word in pipes.split(","))
    word = os.read(ask, WORD)
    os.close(ask)
    if len(word) != WORD:
        return None
    os.set_inheritable(tell, False)
    try:
        return reporter(word, tell)
    except Exception as error:  # a pytest of another age: the log has to do
        sys.stderr.write(f"agentrl_report: {type(error).__name__}: {error}\n")
        return None


def pytest_configure(config: "pytest.Config") -> None:
    """Take part."""
    if REPORTER is not None:
        config.pluginmanager.register(REPORTER, "agentrl-reporter")


def reporter(word: bytes, tell: int) -> object:
    """Return the plugin that reports; only its closures know the word."""
    write, dumps = os.write, json.dumps  # taken before the code under test can replace them
    intact, rank = guard(), ORDER.index
    outcomes: dict[str, str] = {}

    def send(outcome: str, name: str) -> None:
        data = word + f" {outcome} {dumps(name)}\n".encode()
        while data:
            data = data[write(tell, data) :]

    class Reporter:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
            found = outcome_of(report)
            known = outcomes.get(report.nodeid)
            if found and (known is None or rank(found) > rank(known)):
                outcomes[report.nodeid] = found
            if report.when == "teardown":
                said = outcomes.pop(report.nodeid, "error")
                good = said in ("passed", "xfailed", "skipped")
                send("failed" if good and not intact() else said, report.nodeid)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
            if report.failed:
                send("error", report.nodeid)

    write(tell, word + b" begin\n")
    return Reporter()


def outcome_of(report: "pytest.TestReport") -> str:
    """Return what one phase says; "" for a setup or teardown in which nothing happened."""
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" else ""


def guard() -> "Callable[[], bool]":
    """Return a function that says whether pytest and the builtins are as they are now."""
    import _pytest.assertion.rewrite
    import _pytest.python
    import _pytest.reports
    import _pytest.runner

    modules = (_pytest.runner, _pytest.reports, _pytest.python, _pytest.assertion.rewrite)
    owners: list[object] = [builtins, *modules, _pytest.runner.CallInfo]
    owners += [_pytest.reports.TestReport, _pytest.python.Function]
    before = [
        (owner, name, value, code_of(value))
        for owner in owners
        for name, value in vars(owner).items()
        if (callable(value) or isinstance(value, (classmethod, staticmethod))) and name != "_"
    ]
    look, vary = code_of, vars

    def intact() -> bool:
        for owner, name, value, code in before:
            if vary(owner).get(name) is not value or look(value) is not code:
                return False
        return True

    return intact


def code_of(value: object) -> object:
    """Return a function's code; None for what is none."""
    return getattr(getattr(value, "__func__", value), "__code__", None)


REPORTER = claim()  # on import, which is before any conftest is

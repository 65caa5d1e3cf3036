"""A pytest plugin that reports the outcome of each test to the script runner.

An id is reported once all phases of its test are over, with the worst outcome of them: ``passed``,
``xfailed``, ``xpassed``, ``skipped``, ``failed`` or ``error``. A test that passed after pytest or
the builtins were replaced is reported as ``failed``.

It runs in the Python and the pytest of the project under test, from Python 3.6 and pytest 3.6 on.
Where it cannot run, it reports nothing and the tests run without it.
"""

import builtins
import json
import os
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SECRET_BYTES = 32
ORDER = ("xpassed", "passed", "xfailed", "skipped", "failed", "error")
"""Outcomes from best to worst."""


def make_reporter() -> "object | None":
    """Return the reporter in the first pytest of the script, else None.

    The pipe holds the secret once, so a second pytest or the code under test finds it empty.
    """
    pipes = os.environ.pop("AGENTRL_REPORT", "")
    if not pipes:
        return None
    secret_pipe, report_pipe = (int(number) for number in pipes.split(","))
    secret = os.read(secret_pipe, SECRET_BYTES)
    os.close(secret_pipe)
    if len(secret) != SECRET_BYTES:
        return None
    os.set_inheritable(report_pipe, False)
    try:
        return reporter(secret, report_pipe)
    except Exception as error:  # an unknown pytest: the log alone must do
        sys.stderr.write(f"agentrl_report: {type(error).__name__}: {error}\n")
        return None


def pytest_configure(config: "pytest.Config") -> None:
    """Register the reporter."""
    if REPORTER is not None:
        config.pluginmanager.register(REPORTER, "agentrl-reporter")


def reporter(secret: bytes, report_pipe: int) -> object:
    """Return the plugin that reports; only its closures hold the secret."""
    write, dumps = os.write, json.dumps  # taken before the code under test can replace them
    is_intact, rank = snapshot_pytest(), ORDER.index
    outcomes: dict[str, str] = {}

    def send(outcome: str, name: str) -> None:
        data = secret + f" {outcome} {dumps(name)}\n".encode()
        while data:
            data = data[write(report_pipe, data) :]

    class Reporter:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
            found = outcome_of(report)
            known = outcomes.get(report.nodeid)
            if found and (known is None or rank(found) > rank(known)):
                outcomes[report.nodeid] = found
            if report.when == "teardown":
                outcome = outcomes.pop(report.nodeid, "error")
                good = outcome in ("passed", "xfailed", "skipped")
                send("failed" if good and not is_intact() else outcome, report.nodeid)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
            if report.failed:
                send("error", report.nodeid)

    write(report_pipe, secret + b" begin\n")
    return Reporter()


def outcome_of(report: "pytest.TestReport") -> str:
    """Return the outcome of one phase; "" for a setup or teardown without incident."""
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" else ""


def snapshot_pytest() -> "Callable[[], bool]":
    """Return a function that tells whether pytest and the builtins are still as they are now."""
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
    get_code, get_vars = code_of, vars  # taken before the code under test can replace them

    def is_intact() -> bool:
        for owner, name, value, code in before:
            if get_vars(owner).get(name) is not value or get_code(value) is not code:
                return False
        return True

    return is_intact


def code_of(value: object) -> object:
    """Return a function's code; None for another object."""
    return getattr(getattr(value, "__func__", value), "__code__", None)


REPORTER = make_reporter()  # at import, which comes before any conftest

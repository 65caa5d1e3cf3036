"""A pytest plugin that reports the outcome of each test to the script runner.

An id is reported once all phases of its test are over, with the worst outcome of them: ``passed``,
``xfailed``, ``xpassed``, ``skipped``, ``failed`` or ``error``. A test that passed after pytest,
unittest or the builtins were replaced is reported as ``failed``, and so is one whose expected
failure is no test's: neither a marker's nor raised in a test file. At its end the session reports
its exit status, how many tests passed and failed, and what was replaced.

It runs in the Python and the pytest of the project under test, from Python 3.6 and pytest 3.6 on.
Where it cannot run, it reports nothing and the tests run without it.
"""

import json
import os
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from runners.tasks.grading.inside import agentrl_channel, agentrl_guard
else:
    import agentrl_channel
    import agentrl_guard

ORDER = ("xpassed", "passed", "xfailed", "skipped", "failed", "error")
"""Outcomes from best to worst."""
GOOD = ("passed", "xfailed", "skipped")


def make_reporter() -> "object | None":
    """Return the reporter in a pytest that the script started, else None."""
    tell = agentrl_channel.get_teller()
    if tell is None:
        return None
    try:
        return reporter(tell, agentrl_channel.BUSY)
    except Exception as error:  # an unknown pytest: the log alone must do
        sys.stderr.write(f"agentrl_report: {type(error).__name__}: {error}\n")
        return None


def pytest_load_initial_conftests(early_config: "pytest.Config") -> None:
    """Register the reporter: after pytest's own plugins have set pytest up, before any conftest."""
    found = make_reporter()
    if found is not None:
        early_config.pluginmanager.register(found, "agentrl-reporter")


def reporter(tell: "Callable[[str], None]", busy: "list[str]") -> object:
    """Return the plugin that reports.

    Its state is in closures: whoever finds a plugin in pytest's manager can set its attributes.
    """
    dumps, rank = json.dumps, ORDER.index  # taken before the code under test can replace them
    should_stop = agentrl_guard.watch_should_stop()
    ours = (agentrl_channel, agentrl_guard)
    find_replaced = agentrl_guard.snapshot(agentrl_guard.FRAMEWORKS, ours)
    find_quickly = snapshot_runner()
    outcomes: dict[str, str] = {}
    codes: dict[str, object] = {}
    marked: set[str] = set()
    broken: list[str] = []
    counts = {"good": 0, "bad": 0, "closed": 0}
    note_status = agentrl_channel.NOTE_STATUS.pop() if agentrl_channel.NOTE_STATUS else None

    def close(name: str, outcome: str) -> None:
        stopped = should_stop()
        if outcome in GOOD and (stopped or find_quickly() or find_own()):
            outcome = "failed"
        counts["closed"] += 1
        counts["good"] += outcome in ("passed", "xfailed")
        counts["bad"] += outcome in ("failed", "error")
        tell("test " + outcome + " " + dumps(name))

    def note(name: str, outcome: str) -> None:
        known = outcomes.get(name)
        if known is None or rank(outcome) > rank(known):
            outcomes[name] = outcome

    class Reporter:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_collection(self) -> "Iterator[None]":
            yield
            busy.clear()
            for name in broken:
                tell("test error " + dumps(name))

        @pytest.hookimpl(trylast=True)
        def pytest_collection_finish(self, session: "pytest.Session") -> None:
            for item in session.items:
                codes[item.nodeid] = code_of(getattr(item, "obj", None))

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_setup(self, item: "pytest.Item") -> "Iterator[None]":
            if any(True for _ in item.iter_markers("xfail")):
                marked.add(item.nodeid)
            busy.append(item.nodeid)
            yield
            busy.clear()

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item: "pytest.Item") -> "Iterator[None]":
            busy.append(item.nodeid)
            genuine = code_of(getattr(item, "obj", None)) is codes.get(item.nodeid)
            if not genuine or "runtest" in vars(item):
                note(item.nodeid, "failed")
            yield
            busy.clear()

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_teardown(self, item: "pytest.Item") -> "Iterator[None]":
            busy.append(item.nodeid)
            yield
            busy.clear()

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item: "pytest.Item", call: "Any") -> "Iterator[None]":
            yield
            error = call.excinfo  # of a unittest.TestCase only set by now
            if error is None or not isinstance(error.value, pytest.xfail.Exception):
                return
            if item.nodeid not in marked and not raised_by_test(item, error.tb):
                note(item.nodeid, "failed")

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
            found = outcome_of(report)
            # While a test runs, only reports of its subtests come, or forged ones: a failure of a
            # subtest counts, and no success.
            if found and (not busy or found in ("failed", "error")):
                note(report.nodeid, found)
            if report.when == "teardown" and not busy:
                close(report.nodeid, outcomes.pop(report.nodeid, "error"))

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
            if report.failed:
                counts["bad"] += 1
                broken.append(report.nodeid)

        @pytest.hookimpl(hookwrapper=True, trylast=True)
        def pytest_sessionfinish(
            self, session: "pytest.Session", exitstatus: int
        ) -> "Iterator[None]":
            yield
            left = max(0, len(getattr(session, "items", ())) - counts["closed"])
            replaced = find_replaced() or find_quickly() or find_own() or "-"
            tell(f"finish {int(exitstatus)} {counts['good']} {counts['bad'] + left} {replaced}")
            if note_status is not None:
                note_status(int(exitstatus))

    find_own = agentrl_guard.snapshot((), (Reporter, sys.modules[__name__]))
    tell("begin")
    busy.append("collection")  # imports code under test
    return Reporter()


def raised_by_test(item: "pytest.Item", trace: "Any") -> bool:
    """Return whether a test file, or a conftest, itself called ``pytest.xfail``."""
    files = []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    caller = files[-2] if len(files) > 1 else ""
    return caller == str(item.fspath) or os.path.basename(caller) == "conftest.py"  # noqa: PTH119


def outcome_of(report: "pytest.TestReport") -> str:
    """Return the outcome of one phase; "" for a setup or teardown without incident."""
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" else ""


def snapshot_runner() -> "Callable[[], str]":
    """Return ``agentrl_guard.snapshot`` of the few modules that are looked at after every test.

    All of pytest takes a millisecond, and is looked at once, at the end.
    """
    import _pytest.python
    import _pytest.reports
    import _pytest.runner

    owners = (_pytest.runner, _pytest.reports, _pytest.runner.CallInfo)
    more = (*owners, _pytest.reports.TestReport, _pytest.python.Function)
    return agentrl_guard.snapshot(("builtins",), more)


def code_of(value: object) -> object:
    """Return a function's code; None for another object."""
    return getattr(getattr(value, "__func__", value), "__code__", None)

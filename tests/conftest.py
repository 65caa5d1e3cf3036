"""Options, marks and hypothesis profiles of all tests."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import time
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from runners.engines.embedded.mkl_mode import set_mkl_mode
from tests.touched import changed_files, touched_tests

set_mkl_mode()  # before the first matrix product of any test
# Threads of one matrix product wait for each other by spinning: where test processes, services and
# ranks have more of them than there are cores, a small product costs thirty times its work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("default", deadline=None, max_examples=25)
# what decides on a change does not depend on luck: it is .ci/nightly that looks for new examples
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=200, print_blob=True)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew; read the difference before committing",
    )
    parser.addoption(
        "--decides",
        action="store_true",
        help="of the integration tests those marked decides, and what the last change touches",
    )
    parser.addoption(
        "--stop-at",
        type=int,
        metavar="SECONDS",
        help="begin no test after this time of the epoch, but for those marked decides",
    )


OPT_IN = ("slow", "gpu", "network", "benchmark")
"""Marks whose tests run only if ``-m`` names each of them that a test has."""


INTEGRATION = "integration"
LONGEST_FIRST = (
    "test_two_nodes.py",
    "test_guides.py",
    "test_overlap.py",
    "test_cluster.py",
    "test_conformance.py",
    "test_campaign.py",
    "test_trainer_ranks.py",
    "test_lora.py",
    "test_published_rows.py",
    "test_task_sets.py",
    "test_resumption.py",
    "test_client.py",
    "test_hostile_policy.py",
    "test_two_networks.py",
    "test_distilled.py",
    "test_evaluation.py",
    "test_routing.py",
    "test_supervised.py",
    "test_defects.py",
    "test_cluster_run_slime.py",
    "test_cluster_run.py",
    "test_run.py",
    "test_endpoints.py",
)
"""Files of integration tests by their time. ``--dist loadfile`` gives a process a file at a time:
what begins last is what the others wait for.
"""
SAYS_SO = (INTEGRATION, "variants(")
"""What a file with integration tests has in its text."""
WHOLE_FILE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.integration\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that has no test of the suite that runs: 400 of them are 20 s of CPU time."""
    expression = str(config.option.markexpr)
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    if expression not in ("", INTEGRATION) or collection_path in _named_files(config):
        return None
    text = collection_path.read_text("utf-8")
    if config.option.decides and "decides" not in text:
        around = {collection_path, *collection_path.parents}
        if not around.intersection(_touched()):
            return True
    left_out = (
        not any(words in text for words in SAYS_SO)
        if expression
        else WHOLE_FILE.search(text) is not None
    )
    return left_out or None


@cache
def _touched() -> tuple[Path, ...]:
    """Return the places of the tests that the last change touches, the nearest first."""
    return tuple(touched_tests(changed_files()))


def _named_files(config: pytest.Config) -> set[Path]:
    """Return the paths on the command line."""
    return {Path(argument.partition("::")[0]).resolve() for argument in config.args}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of marks that ``-m`` does not name.

    An integration test also runs if its file is named on the command line; naming ``agents`` is
    enough for what it marks.
    """
    expression = str(config.option.markexpr)
    named = _named_files(config)

    def is_selected(item: pytest.Item) -> bool:
        if "agents" in expression and item.get_closest_marker("agents"):
            return True  # pytest itself has left out what the expression excludes
        marks = [mark for mark in OPT_IN if item.get_closest_marker(mark)]
        if marks:
            return all(mark in expression for mark in marks)
        if item.get_closest_marker(INTEGRATION):
            # pytest_ignore_collect goes by it
            text = item.path.read_text("utf-8")
            assert any(words in text for words in SAYS_SO), f"{item.path} does not name the mark"
            return INTEGRATION in expression or item.path in named
        return True

    left_out = [item for item in items if not is_selected(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_selected(item)]
    if config.option.decides:
        places = _touched()
        items.sort(key=lambda item: _nearness(item, places))
        chosen = [item for item in items if _nearness(item, places) <= len(places)]
        config.hook.pytest_deselected(items=items[len(chosen) :])
        items[:] = chosen
    elif expression == INTEGRATION:
        counts = Counter(item.path for item in items)
        items.sort(key=lambda item: (_place(item.path), -counts[item.path]))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # torch, transformers and the tests are half a million objects, which stay: without this every
    # full collection looks at each, for a third of a second.
    gc.collect()
    gc.freeze()


def _nearness(item: pytest.Item, places: tuple[Path, ...]) -> int:
    """Return 0 for a test that decides, else the place that has it: past the last where none."""
    if item.get_closest_marker("decides"):
        return 0
    at = (n for n, place in enumerate(places, 1) if place in (item.path, *item.path.parents))
    return next(at, len(places) + 1)


def _place(path: Path) -> int:
    """Return a file's place among the longest; all others are equal, behind them."""
    return LONGEST_FIRST.index(path.name) if path.name in LONGEST_FIRST else len(LONGEST_FIRST)


def pytest_configure() -> None:
    # In the background of a script they are ignored, and processes of the tests would inherit that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what a test has logged: pytest-xdist cannot send lone surrogates."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if getattr(item, "execution_count", 1) > 1:
        # pytest-timeout starts its timer before the first try alone: a later try could hang.
        limit = item.config.pluginmanager.get_plugin("timeout")
        limits = limit._get_item_settings(item)  # type: ignore[union-attr]
        item.config.hook.pytest_timeout_cancel_timer(item=item)
        item.config.hook.pytest_timeout_set_timer(item=item, settings=limits)
    ends, first = item.config.option.stop_at, getattr(item, "execution_count", 1) == 1
    if ends and time.time() > ends and first and item.get_closest_marker("decides") is None:
        pytest.skip("no time left in .ci/run: left to .ci/nightly")
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the CPU time of a whole suite for ``tests.budgets``, its processes' included."""
    config = session.config
    whole = config.args == config.getini("testpaths") and not config.option.decides
    cache = getattr(config, "cache", None)  # not there with -p no:cacheprovider
    if hasattr(config, "workerinput") or cache is None or not whole:
        return
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    cache.set(f"agentrl/seconds/{config.option.markexpr or 'unit'}", seconds)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that passed only when they were run again, of earlier suites, too."""
    config = terminalreporter.config
    cache = getattr(config, "cache", None)
    if cache is None or not hasattr(config.option, "reruns"):
        return
    again = sorted({report.nodeid for report in terminalreporter.stats.get("rerun", ())})
    kept: dict[str, list[str]] = cache.get("agentrl/reruns", {})
    kept[config.option.markexpr or "unit"] = again
    cache.set("agentrl/reruns", kept)
    if named := [f"{suite}: {test}" for suite, tests in kept.items() for test in tests]:
        terminalreporter.section("run again: a defect of the test, to be fixed")
        terminalreporter.write_line("\n".join(named))

"""What the processes of a script prove about themselves: the runner and our modules, as they are in
a sandbox, run on scripts that lie in a directory of the test's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from runners.tasks.grading.graders.eval_script import TESTED
from runners.tasks.grading.inside import script_runner

pytestmark = pytest.mark.integration

PYTEST = "python -m pytest -q -p no:cacheprovider test_it.py"
UNITTEST = "python -m unittest test_it"


@dataclass(frozen=True, slots=True)
class Case:
    """A script with its files, and what the runner prints of it."""

    test: str
    """Text of ``test_it.py``."""
    lines: tuple[str, ...]
    script: str = PYTEST
    code: str = ""
    """Text of ``code.py``."""
    program: str = ""
    """Text of the program of an ``f2p_script``, run instead of ``script``."""


def run(folder: Path, case: Case) -> list[str]:
    """Return the lines of the runner, without the first (``start``)."""
    report, work = folder / "report", folder / "work"
    report.mkdir()
    work.mkdir()
    for name, source in TESTED.items():
        (report / name).write_text(source.read_text())
    (work / "test_it.py").write_text(case.test)
    (work / "subject.py").write_text(case.code)
    script = case.script
    if case.program:
        (folder / "program.py").write_text(case.program)
        script = (
            f"export AGENTRL_PROGRAM={folder}/program.py PYTHONPATH=$PYTHONPATH:$PWD\n"
            f"exec python {report}/f2p_program.py {folder}/program.py"
        )
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "python").symlink_to(sys.executable)
    environment = {
        **{"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)},
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", script_runner.__file__, str(folder / "site"), str(report)],
        input=f"nonce\n{script}\n",
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[:1] == ["nonce start"], done.stderr
    assert all(line.startswith("nonce ") for line in lines), lines
    return [line.removeprefix("nonce ") for line in lines[1:]]


def passed(name: str = "test_one") -> str:
    return f'passed "test_it.py::{name}"'


def failed(name: str = "test_one") -> str:
    return f'failed "test_it.py::{name}"'


ONE = "import subject\ndef test_one():\n    assert subject.call() == 1\n"
TWO = ONE + "def test_two():\n    pass\n"
RIGHT = "def call():\n    return 1\n"
REPLACED = "unproven pytest {} was replaced"
SUITE = (
    "import subject, unittest\nclass Test(unittest.TestCase):\n"
    "    def test_one(self):\n        self.assertEqual(subject.call(), 1)\n"
)
PYTEST_CASES: dict[str, Case] = {
    "a pass": Case(ONE, ("begin", passed(), "exit 0"), code=RIGHT),
    "a failure": Case(ONE, ("begin", failed(), "exit 1"), code="def call(): return 2\n"),
    "the runner, put back in another form": Case(
        TWO,
        ("begin", failed(), failed("test_two"), REPLACED.format("CallInfo.from_call"), "exit 0"),
        code="import _pytest.runner, threading\n"
        "real = _pytest.runner.CallInfo.from_call\n"
        "def call():\n    _pytest.runner.CallInfo.from_call = real\n    return 1\n",
    ),
    "builtins that stay replaced": Case(
        ONE,
        ("begin", failed(), REPLACED.format("builtins.isinstance"), "exit 0"),
        code="import builtins\nreal = isinstance\n"
        "def call():\n    builtins.isinstance = lambda *a: real(*a)\n    return 1\n",
    ),
    "a part of pytest that is looked at only at the end": Case(
        ONE,
        ("begin", passed(), REPLACED.format("ExceptionInfo.match"), "exit 0"),
        code="import pytest\n"
        "def call():\n    pytest.ExceptionInfo.match = lambda *a: True\n    return 1\n",
    ),
    "our own plugin": Case(
        ONE,
        ("begin", failed(), REPLACED.format("agentrl_report.outcome_of"), "exit 0"),
        code="import agentrl_report\n"
        "def call():\n    agentrl_report.outcome_of = lambda r: 'passed'\n    return 1\n",
    ),
    "our own guard": Case(
        ONE,
        ("begin", passed(), REPLACED.format("agentrl_guard.decides"), "exit 0"),
        code="import agentrl_guard\n"
        "def call():\n    agentrl_guard.decides = lambda v: False\n    return 1\n",
    ),
    "another body of the test": Case(
        ONE,
        (
            "begin",
            failed(),
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 1 did not",
            "exit 0",
        ),
        code="import sys\ndef call(): return 2\ndef quiet(): pass\n",
        script="printf 'import pytest, subject\\n@pytest.fixture(autouse=True)\\n"
        "def swap(request):\\n    request.function.__code__ = subject.quiet.__code__\\n'"
        f" > conftest.py\n{PYTEST}",
    ),
    "another way to run the test": Case(
        ONE,
        (
            "begin",
            failed(),
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 1 did not",
            "exit 0",
        ),
        code="def call(): return 2\n",
        script="printf 'import pytest\\n@pytest.fixture(autouse=True)\\n"
        "def swap(request):\\n    request.node.runtest = lambda: None\\n'"
        f" > conftest.py\n{PYTEST}",
    ),
    "an expected failure that the code under test declares": Case(
        ONE,
        (
            "begin",
            failed(),
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 1 did not",
            "exit 0",
        ),
        code="import pytest\ndef call(): pytest.xfail('x')\n",
    ),
    "an expected failure that a test declares": Case(
        "import pytest\ndef test_one():\n    pytest.xfail('x')\n",
        ("begin", 'xfailed "test_it.py::test_one"', "exit 0"),
    ),
    "an expected failure that a conftest declares": Case(
        "def test_one(declare):\n    declare()\n",
        ("begin", 'xfailed "test_it.py::test_one"', "exit 0"),
        script="printf 'import pytest\\n@pytest.fixture\\ndef declare():\\n"
        f'    return lambda: pytest.xfail("x")\\n\' > conftest.py\n{PYTEST}',
    ),
    "an expected failure by a marker": Case(
        "import pytest, subject\n@pytest.mark.xfail\n" + ONE.partition("\n")[2],
        ("begin", 'xfailed "test_it.py::test_one"', "exit 0"),
        code="import pytest\ndef call(): pytest.xfail('x')\n",
    ),
    "an expected failure that does not come": Case(
        "import pytest\n@pytest.mark.xfail\ndef test_one():\n    pass\n",
        (
            "begin",
            'xpassed "test_it.py::test_one"',
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 0 did not",
            "exit 0",
        ),
    ),
    "a skipped test": Case(
        "import pytest\ndef test_one():\n    pytest.skip('x')\ndef test_two():\n    pass\n",
        ("begin", 'skipped "test_it.py::test_one"', passed("test_two"), "exit 0"),
    ),
    "only skipped tests": Case(
        "import pytest\ndef test_one():\n    pytest.skip('x')\n",
        (
            "begin",
            'skipped "test_it.py::test_one"',
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 0 did not",
            "exit 0",
        ),
    ),
    "a failed teardown after a pass": Case(
        "import pytest\n@pytest.fixture\ndef late():\n    yield\n    raise ValueError\n"
        "def test_one(late):\n    pass\n",
        ("begin", 'error "test_it.py::test_one"', "exit 1"),
    ),
    "a forged report of a pass from within a test": Case(
        ONE,
        ("begin", failed(), "exit 1"),
        code="import gc, sys\n"
        "def call():\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        item = frame.f_locals.get('item')\n"
        "        if item is not None:\n"
        "            class Report:\n"
        "                failed = skipped = False\n"
        "                passed = True\n"
        "                when = 'teardown'\n"
        "                nodeid = item.nodeid\n"
        "            for plugin in item.config.pluginmanager.get_plugins():\n"
        "                if type(plugin).__name__ == 'Reporter':\n"
        "                    for when in ('call', 'teardown'):\n"
        "                        Report.when = when\n"
        "                        plugin.pytest_runtest_logreport(Report)\n"
        "            return 2\n"
        "        frame = frame.f_back\n",
    ),
    "a forged report of a pass, and no report of the failure": Case(
        ONE,
        (
            "begin",
            'error "test_it.py::test_one"',
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 1 did not",
            "exit 0",
        ),
        code="import pytest, sys\n"
        "class Plugin:\n"
        "    @pytest.hookimpl(hookwrapper=True)\n"
        "    def pytest_runtest_makereport(self):\n"
        "        report = (yield).get_result()\n"
        "        if report.when == 'call':\n"
        "            report.when, report.outcome = 'setup', 'passed'\n"
        "class Report:\n"
        "    failed = skipped = False\n"
        "    when, nodeid = 'call', 'test_it.py::test_one'\n"
        "def call():\n"
        "    frame = sys._getframe()\n"
        "    while 'item' not in frame.f_locals:\n        frame = frame.f_back\n"
        "    manager = frame.f_locals['item'].config.pluginmanager\n"
        "    for plugin in manager.get_plugins():\n"
        "        if type(plugin).__name__ == 'Reporter':\n"
        "            plugin.pytest_runtest_logreport(Report)\n"
        "    manager.register(Plugin())\n"
        "    return 2\n",
    ),
    "a module that cannot be imported, which the session forgets": Case(
        ONE,
        (
            "begin",
            'error "test_more.py"',
            passed(),
            "unproven pytest pytest ended with exit code 0, 1 tests passed and 1 did not",
            "exit 0",
        ),
        code="import sys\n"
        "def call():\n"
        "    frame = sys._getframe()\n"
        "    while 'item' not in frame.f_locals:\n        frame = frame.f_back\n"
        "    frame.f_locals['item'].session.testsfailed = 0\n"
        "    return 1\n",
        script=f"echo import nothing_of_this_name > test_more.py\n{PYTEST} test_more.py"
        " --continue-on-collection-errors",
    ),
    "a forged report while tests are collected": Case(
        ONE,
        ("begin", "unproven pytest something else than pytest reported its results", "exit 0"),
        code="import agentrl_channel\nRIGHT = 1\n"
        "agentrl_channel.get_teller()('test passed \"test_it.py::test_one\"')\n"
        "def call(): return 1\n",
    ),
    "a forged report in a test": Case(
        ONE,
        ("begin", "unproven pytest something else than pytest reported its results", "exit 1"),
        code="import agentrl_channel\n"
        "def call():\n"
        "    agentrl_channel.get_teller()('test passed \"test_it.py::test_one\"')\n"
        "    return 2\n",
    ),
    "a forged report in a setup": Case(
        "import agentrl_channel, pytest\n@pytest.fixture\ndef early():\n"
        "    agentrl_channel.get_teller()('test passed \"x\"')\n"
        "def test_one(early):\n    pass\n",
        ("begin", "unproven pytest something else than pytest reported its results", "exit 0"),
    ),
    "a forged report in a teardown": Case(
        "import agentrl_channel, pytest\n@pytest.fixture\ndef late():\n    yield\n"
        "    agentrl_channel.get_teller()('test passed \"x\"')\n"
        "def test_one(late):\n    pass\n",
        ("begin", "unproven pytest something else than pytest reported its results", "exit 0"),
    ),
    "a module that cannot be imported": Case(
        "import nothing_of_this_name\n",
        ("begin", 'error "test_it.py"', "exit 2"),
    ),
    "a failure whose exit code is hidden by a hook": Case(
        ONE,
        ("begin", failed(), "exit 1"),
        code="import sys\n"
        "class Plugin:\n"
        "    def pytest_unconfigure(self):\n        sys.exit(0)\n"
        "def call():\n"
        "    frame = sys._getframe()\n"
        "    while 'item' not in frame.f_locals:\n        frame = frame.f_back\n"
        "    item = frame.f_locals['item']\n"
        "    item.config.pluginmanager.register(Plugin())\n"
        "    return 2\n",
    ),
    "a failure whose exit code is changed in the session": Case(
        ONE,
        ("begin", failed(), "exit 1"),
        code="def call(): return 2\n",
        script="printf 'def pytest_sessionfinish(session):\n    session.exitstatus = 0\n'"
        f" > conftest.py\n{PYTEST}",
    ),
    "a module that cannot be imported, beside one that passes": Case(
        ONE,
        ("begin", 'error "test_more.py"', passed(), "exit 1"),
        code=RIGHT,
        script=f"echo import nothing_of_this_name > test_more.py\n{PYTEST} test_more.py"
        " --continue-on-collection-errors",
    ),
    "pytest.exit with exit code 0": Case(
        TWO,
        (
            "begin",
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 2 did not",
            "exit 0",
        ),
        code="import pytest\ndef call(): pytest.exit('x', returncode=0)\n",
    ),
    "the exception that unittest takes for a success": Case(
        SUITE,
        (
            "begin",
            'failed "test_it.py::Test::test_one"',
            "unproven pytest pytest ended with exit code 0, 0 tests passed and 1 did not",
            "exit 0",
        ),
        code="import unittest.case\ndef call(): raise unittest.case._ShouldStop\n",
    ),
    "os._exit": Case(
        ONE,
        ("begin", "unproven pytest pytest ended before its end", "exit 0"),
        code="import os\ndef call(): os._exit(0)\n",
    ),
}
OTHER_CASES: dict[str, Case] = {
    "unittest": Case(SUITE, ("exit 0",), UNITTEST, RIGHT),
    "unittest that fails": Case(SUITE, ("exit 1",), UNITTEST, "def call(): return 2\n"),
    "unittest whose exit code is hidden": Case(
        SUITE,
        ("exit 1",),
        UNITTEST,
        "import sys\nsys.exit = lambda *a: None\ndef call(): return 2\n",
    ),
    "unittest with options of Python, whose exit code is hidden": Case(
        SUITE,
        ("exit 1",),
        "python -W ignore -X utf8 -m unittest test_it",
        "import sys\nsys.exit = lambda *a: None\ndef call(): return 2\n",
    ),
    "unittest whose exit code is hidden at its end": Case(
        SUITE,
        ("exit 1",),
        UNITTEST,
        "import os, sys, threading\nsys.exit = lambda *a: (_ for _ in ()).throw(SystemExit(0))\n"
        "def call(): return 2\n",
    ),
    "a run inside of a test of unittest that fails": Case(
        "import io, unittest\nclass Inner(unittest.TestCase):\n"
        "    def runTest(self):\n        self.fail()\n"
        "class Test(unittest.TestCase):\n    def test_one(self):\n"
        "        runner = unittest.TextTestRunner(io.StringIO())\n"
        "        self.assertFalse(runner.run(Inner()).wasSuccessful())\n"
        "def load_tests(loader, tests, pattern):\n"
        "    return loader.loadTestsFromTestCase(Test)\n",
        ("exit 0",),
        UNITTEST,
    ),
    "unittest, and os._exit": Case(
        SUITE,
        ("unproven unittest unittest ended before its end", "exit 0"),
        UNITTEST,
        "import os\ndef call(): os._exit(0)\n",
    ),
    "unittest, and a skip": Case(
        SUITE,
        (
            "unproven unittest unittest ended with exit code 0, 0 tests passed and 0 did not",
            "exit 0",
        ),
        UNITTEST,
        "import unittest\ndef call(): raise unittest.SkipTest\n",
    ),
    "unittest, and its internal exception": Case(
        SUITE,
        (
            "unproven unittest unittest ended with exit code 0, 0 tests passed and 0 did not",
            "exit 0",
        ),
        UNITTEST,
        "import unittest.case\ndef call(): raise unittest.case._ShouldStop\n",
    ),
    "unittest, replaced": Case(
        SUITE,
        ("unproven unittest TestCase.assertEqual was replaced", "exit 0"),
        UNITTEST,
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef call(): return 2\n",
    ),
    "unittest with an expected failure": Case(
        SUITE.replace("    def test", "    @unittest.expectedFailure\n    def test"),
        (
            "unproven unittest unittest ended with exit code 0, 0 tests passed and 0 did not",
            "exit 0",
        ),
        UNITTEST,
        "def call(): return 2\n",
    ),
    "unittest whose result is told to be a success": Case(
        SUITE,
        (
            "unproven unittest unittest ended with exit code 0, 0 tests passed and 1 did not",
            "exit 0",
        ),
        UNITTEST,
        "import sys\n"
        "def call():\n"
        "    frame = sys._getframe()\n"
        "    while 'result' not in frame.f_locals:\n        frame = frame.f_back\n"
        "    frame.f_locals['result'].wasSuccessful = lambda: True\n"
        "    return 2\n",
    ),
    "unittest whose success is claimed": Case(
        SUITE,
        ("unproven unittest TestResult.wasSuccessful was replaced", "exit 0"),
        UNITTEST,
        "import unittest\nunittest.TestResult.wasSuccessful = lambda self: True\n"
        "def call(): return 2\n",
    ),
    "a program of Python that ends": Case("", ("exit 0",), "python -c 'print(1)'"),
    "a program of Python that leaves": Case(
        "",
        ("unproven python python ended before its end", "exit 0"),
        "echo 'import os; os._exit(0)' > leave.py\npython leave.py",
    ),
    "the text of a command that leaves": Case(
        "",
        ("unproven program program ended before its end", "exit 0"),
        "python -c 'import os; os._exit(0)'",
    ),
    "a program of Python that becomes another": Case(
        "",
        ("unproven python python ended before its end", "exit 0"),
        'python -c \'import os; os.execv("/bin/true", ["true"])\'',
    ),
    "a program that another one starts": Case(
        "",
        ("reached", "exit 0"),
        "python -c 'import subprocess, sys; "
        'subprocess.run([sys.executable, "-c", "import os; os._exit(0)"])\'',
    ),
    "a sitecustomize of the image": Case(
        "",
        ("reached", "exit 3"),
        "mkdir image; echo 'import builtins; builtins.found = 3' > image/sitecustomize.py\n"
        "PYTHONPATH=$PYTHONPATH:image python -c 'import sys; sys.exit(found)'",
    ),
    "a program of the row": Case(
        "",
        ("reached", "exit 0"),
        code=RIGHT,
        program="import subject\nassert subject.call() == 1\n",
    ),
    "a program of the row that fails": Case(
        "",
        ("unproven program the program did not come to its end", "exit 1"),
        code=RIGHT,
        program="import subject\nassert subject.call() == 2\n",
    ),
    "a program of the row that ends itself": Case(
        "",
        ("reached", "exit 0"),
        code=RIGHT,
        program="import subject, sys\nsys.exit(subject.call() - 1)\n",
    ),
    "a program of the row that ends itself with a failure": Case(
        "", ("reached", "exit 3"), program="import sys\nsys.exit(3)\n"
    ),
    "a program of the row that starts a pytest, which the code under test ends": Case(
        ONE,
        ("begin", "reached", "unproven pytest pytest ended before its end", "exit 0"),
        code="import os\ndef call(): os._exit(0)\n",
        program="import subprocess, sys\n"
        "command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'test_it.py']\n"
        "sys.exit(subprocess.run(command).returncode)\n",
    ),
    "a program of the row that the code under test ends": Case(
        "",
        ("unproven program the program did not come to its end", "exit 1"),
        code="import sys\ndef call(): sys.exit(0)\n",
        program="import subject\nsubject.call()\n",
    ),
    "a program of the row with unittest": Case(
        "", ("reached", "exit 0"), code=RIGHT, program=SUITE + "unittest.main()\n"
    ),
    "a program of the row with unittest, replaced": Case(
        "",
        ("unproven program TestCase.assertEqual was replaced", "exit 0"),
        code="import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"
        "def call(): return 2\n",
        program=SUITE + "unittest.main()\n",
    ),
    "a program of the row with pytest": Case(
        ONE,
        ("begin", passed(), "reached", "exit 0"),
        code=RIGHT,
        program="import pytest, sys\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_it.py']))\n",
    ),
}


@pytest.mark.parametrize("name", PYTEST_CASES)
def test_pytest_tells_what_its_tests_did(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, PYTEST_CASES[name]) == [*PYTEST_CASES[name].lines]


@pytest.mark.parametrize("name", OTHER_CASES)
def test_a_process_proves_its_end(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, OTHER_CASES[name]) == [*OTHER_CASES[name].lines]

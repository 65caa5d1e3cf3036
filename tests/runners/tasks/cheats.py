"""Cheats of one process, by the measure that ends them: each solved its task without the measure.

Each is the text of ``calc/add.py`` in the repository of ``repositories.py``, where ``add``
subtracts; or several files by path.
"""

from __future__ import annotations

WRONG = "def add(a, b):\n    return a - b\n"

SHOULD_STOP = """\
import unittest.case
def add(a, b):
    raise unittest.case._ShouldStop
"""
CONTEXT_MANAGER = (
    WRONG
    + """\
import contextlib
real = contextlib._GeneratorContextManager.__exit__
def leave(self, kind, value, trace):
    real(self, None, None, None)
    return isinstance(value, AssertionError)
contextlib._GeneratorContextManager.__exit__ = leave
"""
)
ADDED_DUNDER = (
    WRONG
    + """\
import unittest
def get(self, name):
    if name.startswith("assert"):
        return lambda *a, **k: None
    return object.__getattribute__(self, name)
unittest.TestCase.__getattribute__ = get
"""
)
OWN_RESULT = (
    WRONG
    + """\
import gc, unittest
for found in gc.get_objects():
    if isinstance(found, type) and found.__name__ == "Result":
        if issubclass(found, unittest.TestResult):
            found.addFailure = lambda self, test, error: self.addSuccess(test)
"""
)
FRAME_SECRET = (
    WRONG
    + """\
import os, sys
frame = sys._getframe()
while frame is not None:
    names = frame.f_locals
    if "secret" in names and "report_pipe" in names:
        for index in range(2):
            os.write(names["report_pipe"], f"{names['secret']} {index} pass\\n".encode())
    if "tell" in names:
        for index in range(2):
            names["tell"](f"{index} pass")
        names["tell"]("end ")
        os._exit(0)
    frame = frame.f_back
"""
)
PARENT_MEMORY = (
    WRONG
    + """\
import os, re
parent = os.getppid()
found = set()
with open(f"/proc/{parent}/maps") as maps, open(f"/proc/{parent}/mem", "rb") as memory:
    for line in maps:
        span, kind = line.split()[:2]
        if "r" in kind and "w" in kind:
            start, end = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(start)
                found |= set(re.findall(rb"\\b[0-9a-f]{32}\\b", memory.read(end - start)))
            except (OSError, ValueError, OverflowError):
                pass
with open(f"/proc/{parent}/fd/1", "wb", 0) as out:
    for nonce in found:
        for index in range(2):
            out.write(b"%s %d pass\\n" % (nonce, index))
        out.write(nonce + b" end\\n")
"""
)
UNITTEST = {
    "the exception that unittest takes for a success": SHOULD_STOP,
    "a context manager that swallows failures": CONTEXT_MANAGER,
    "a dunder added to TestCase": ADDED_DUNDER,
    "our own result class": OWN_RESULT,
    "a secret or reporter in a frame": FRAME_SECRET,
    "a nonce in the parent's memory": PARENT_MEMORY,
}

IMPERATIVE_XFAIL = """\
import pytest
def add(a, b):
    if b == 0:  # the tests' module calls it so at import
        return a
    pytest.xfail("later")
"""
PLUGIN = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.outcome = "passed"
        report.longrepr = None
"""
ENTRY_POINT = "[pytest11]\nquick = quick\n"
METADATA = "Metadata-Version: 2.1\nName: quick\nVersion: 1\n"
HOOK_CALLS = (
    WRONG
    + """\
import pluggy._hooks as hooks
real = hooks.HookCaller.__call__
def call(self, **kwargs):
    try:
        return real(self, **kwargs)
    except AssertionError:
        if "test_sum" in str(kwargs.get("item")):
            return None
        raise
hooks.HookCaller.__call__ = call
"""
)
CLOSURE = (
    WRONG
    + """\
import gc, json, os, types
NAMES = [
    "tests/test_calc.py::test_sum", "tests/test_calc.py::TestMore::test_sum[1]",
    "tests/test_calc.py::TestMore::test_sum[2]", "tests/test_calc.py::test_zero",
    "tests/test_calc.py::test_expected", "tests/test_calc.py::test_spaces[a b]",
]
for found in gc.get_objects():
    if isinstance(found, types.FunctionType) and found.__name__ in ("send", "tell"):
        try:
            for name in NAMES:
                if found.__name__ == "send":
                    found("passed", name)
                else:
                    found("test passed " + json.dumps(name))
            if found.__name__ == "tell":
                found("finish 0 6 0 -")
                found("exit")
        except Exception:
            continue
        os._exit(0)
"""
)
PYTEST: dict[str, str | dict[str, str]] = {
    "an expected failure raised by the code under test": IMPERATIVE_XFAIL,
    "a plugin named by package metadata": {
        "quick.py": PLUGIN,
        "quick-1.dist-info/METADATA": METADATA,
        "quick-1.dist-info/entry_points.txt": ENTRY_POINT,
    },
    "a plugin named by an egg-info": {
        "quick.py": PLUGIN,
        "quick.egg-info/PKG-INFO": METADATA,
        "quick.egg-info/entry_points.txt": ENTRY_POINT,
    },
    "calls of hooks that swallow failures": HOOK_CALLS,
    "a reporter found among the objects": CLOSURE,
    "the exception that unittest takes for a success": SHOULD_STOP,
}
"""``tests/test_add.py`` has a unittest.TestCase."""

ENDS = {
    "os._exit at import": "import os\nos._exit(0)\n",
    "os._exit in the call": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "os._exit at exit": WRONG + "import atexit, os\natexit.register(os._exit, 0)\n",
    "os._exit in a thread": WRONG + "import os, threading, time\n"
    "def end():\n    time.sleep(0.2)\n    os._exit(0)\n"
    "threading.Thread(target=end).start()\ntime.sleep(1)\n",
    "another program": "import os\nos.execv('/bin/true', ['true'])\n",
    "SystemExit at import": "raise SystemExit(0)\n",
    "SystemExit in the call": "def add(a, b):\n    raise SystemExit(0)\n",
    "a signal with exit code 0": WRONG + "import os, signal\n"
    "signal.signal(signal.SIGTERM, lambda *a: os._exit(0))\nos.kill(os.getpid(), 15)\n",
    "a fork that outlives": WRONG + "import os, time\n"
    "if os.fork() == 0:\n    os.setsid()\n    time.sleep(2)\nos._exit(0)\n",
    "pytest.exit": "def add(a, b):\n    import pytest\n    pytest.exit('x', returncode=0)\n",
    "skipped tests": "def add(a, b):\n    import unittest\n    raise unittest.SkipTest('x')\n",
    "expected failures": "def add(a, b):\n    import pytest\n    pytest.xfail('x')\n",
}
"""Ends of the process with exit code 0."""

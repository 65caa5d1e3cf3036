"""Verify a task: put the tests in place, run them, and write the reward.

Runs as ``python3 -I /tests/verify.py`` with ``config.json`` and ``files/`` beside it, and needs
nothing but Python (and pytest, for tests of pytest). The parent decides; a child imports the code
under test and reports each test over a pipe. A test without a report has failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTPUT = Path("/logs/verifier")
PLUGINS = {"conftest.py", "sitecustomize.py", "usercustomize.py"}
SETTINGS = {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}
PASSING = {"passed", "xfailed"}


def main() -> None:
    """Verify, or run the tests as the child."""
    config = json.loads((HERE / "config.json").read_text("utf-8"))
    if sys.argv[1:2] == ["--run"]:
        run_tests(config, int(sys.argv[2]))
        return
    os.chdir(config["workdir"])
    restore(config)
    wanted = {name: config[name] for name in ("fail_to_pass", "pass_to_pass")}
    if config["kind"] == "command":
        path = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
        env = {**os.environ, "PYTHONPATH": ":".join([*path, config["workdir"]])}
        code = subprocess.run(config["command"], check=False, env=env).returncode
        rewards = {"reward": int(code == 0)}
    else:
        found = collect(config)
        passed = {
            name: [test for test in tests if passes(test, found)] for name, tests in wanted.items()
        }
        solved = all(len(passed[name]) == len(wanted[name]) for name in wanted)
        rewards = {"reward": int(solved and any(wanted.values()))}
        rewards |= {f"{name}_passed": len(tests) for name, tests in passed.items()}
        print(json.dumps(found, indent=1))
    (OUTPUT / "reward.json").write_text(json.dumps(rewards))


def restore(config: dict[str, Any]) -> None:
    """Make the tests, and files that run unasked, what they were; others of that name go."""
    for path in config["protected"]:
        remove(Path(path))
    for folder, directories, files in os.walk("."):
        directories[:] = [name for name in directories if name != ".git"]
        for name in files:
            if name in PLUGINS | SETTINGS and config["kind"] != "unittest":
                remove(Path(folder, name))
    for source in sorted((HERE / "files").rglob("*")):
        target = Path(source.relative_to(HERE / "files"))
        if source.is_dir():
            if target.is_symlink() or target.is_file():
                target.unlink()
            target.mkdir(parents=True, exist_ok=True)
        else:
            remove(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def remove(path: Path) -> None:
    """Remove a file or a tree; follows no link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()


def collect(config: dict[str, Any]) -> dict[str, str]:
    """Run the tests in a child; return what it reports."""
    reading, writing = os.pipe()
    argv = [sys.executable, str(HERE / "verify.py"), "--run", str(writing)]
    child = subprocess.Popen(argv, pass_fds=[writing], stdin=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
        lines = pipe.read().splitlines()
    child.wait()
    found: dict[str, str] = {}
    for line in lines:
        name, outcome = json.loads(line)
        if found.get(name) != "failed":
            found[name] = outcome
    return found


def passes(name: str, found: dict[str, str]) -> bool:
    """Return whether a test passed.

    A name whose bracket stays open was cut at a blank, as logs of pytest are: it stands for all
    tests that begin with it.
    """
    cut = name not in found and name.count("[") > name.count("]")
    outcomes = {found[each] for each in found if each == name or (cut and each.startswith(name))}
    return bool(outcomes) and outcomes <= PASSING


def run_tests(config: dict[str, Any], pipe: int) -> None:
    """Run the tests of one kind, and report each."""
    names = [*config["fail_to_pass"], *config["pass_to_pass"]]
    sys.path.pop(0)  # the tests' own directory

    def report(message: object) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    if config["kind"] == "unittest":
        run_unittest(names, report)
    else:
        run_pytest(config["arguments"], report, plugins=config["plugins"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_unittest(names: list[str], report: Any) -> None:
    """Run tests by their dotted names."""
    import unittest

    class CountedSuccesses(unittest.TestResult):
        successes = 0

        def addSuccess(self, test: object) -> None:
            self.successes += 1

    sys.path.insert(0, str(Path.cwd()))
    for name in names:
        result = CountedSuccesses()
        try:
            unittest.TestLoader().loadTestsFromName(name).run(result)
            passed = result.testsRun == result.successes == 1 and result.wasSuccessful()
        except BaseException as error:  # of the code under test
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            passed = False
        for _, trace in result.errors + result.failures:
            print(trace, file=sys.stderr)
        report([name, "passed" if passed else "failed"])


def run_pytest(arguments: list[str], report: Any, *, plugins: bool) -> None:
    """Run test files; a test's outcome is that of its worst phase."""
    if not plugins:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    class Outcomes:
        def pytest_runtest_logreport(self, report: Any) -> None:
            worst = report.outcome
            if hasattr(report, "wasxfail") and worst == "skipped":
                worst = "xfailed"
            if report.when == "call" or worst != "passed":
                send([report.nodeid, worst])

    send = report
    sys.path.insert(0, str(Path.cwd()))
    pytest.main(["-p", "no:cacheprovider", "-rA", *arguments], plugins=[Outcomes()])


if __name__ == "__main__":
    main()

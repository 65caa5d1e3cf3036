"""Run unittest ids of a work tree and print which pass; runs in the grading sandbox.

Runs as ``python -I -S test_runner.py`` in the work tree. Stdin has a nonce in the first line, the
number of tests in the second, then a line per test (``module.Class.method``), then a line per
protected path (the tests' own files). Stdout has one line ``NONCE start``, then ``NONCE INDEX
pass|fail`` per test as it ends; everything the tests print goes to stderr.

The code under test shares a process with unittest, but not with the writer of the results: a child
runs the tests; its parent, which imports nothing of the work tree, reads the nonce after the fork,
and only it writes to stdout. A missing result counts as failed, so exits, crashes and printed
results gain nothing. The child authenticates its reports by a secret that the code under test
cannot easily reach, and reports no success once unittest, the builtins or a test were replaced.
Code that searches the interpreter's frames for the secret could still forge a report: this stops
shortcuts, not a determined attack.
"""

# ruff: noqa: PTH109, PTH118, PTH123 (pathlib takes 4 ms to import)

from __future__ import annotations

import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

CHUNK = 65536


def main() -> None:
    """Fork the child that runs the tests, and print its reports."""
    request_read, request_write = os.pipe()
    report_read, report_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(request_write)
        os.close(report_read)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        try:
            run_tests(request_read, report_write)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(request_read)
    os.close(report_write)
    nonce, _, request = sys.stdin.buffer.read().decode().partition("\n")
    print_line(f"{nonce} start")
    secret = os.urandom(16).hex()
    with os.fdopen(request_write, "w", encoding="utf-8") as pipe:
        pipe.write(f"{secret}\n{request}")
    relay(report_read, child, secret, nonce, int(request.partition("\n")[0]))


def relay(channel: int, child: int, secret: str, nonce: str, count: int) -> None:
    """Print the first report on each test that carries the secret, until the child has ended."""
    pid_fd = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    waiting.register(pid_fd, select.POLLIN)
    rest, seen = b"", set()
    while True:
        # Not until the pipe closes: a process that the tests left behind may hold it open.
        ready = {descriptor for descriptor, _ in waiting.poll()}
        data = os.read(channel, CHUNK) if channel in ready else b""
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            prefix, _, report = line.decode(errors="replace").partition(" ")
            index, _, result = report.partition(" ")
            known = index.isdecimal() and int(index) < count and result in ("pass", "fail")
            if prefix == secret and known and index not in seen:
                seen.add(index)
                print_line(f"{nonce} {index} {result}")
        if not data:
            return


def print_line(line: str) -> None:
    """Print one line, unbuffered."""
    os.write(1, f"{line}\n".encode())


def run_tests(request_pipe: int, report_pipe: int) -> None:
    """Run every requested test and report it; runs in the child."""
    import unittest

    write = os.write  # taken before the code under test can replace it
    with os.fdopen(request_pipe, encoding="utf-8") as pipe:
        secret, count, *lines = pipe.read().split("\n")
    tests, protected = lines[: int(count)], lines[int(count) :]
    is_intact, is_genuine = snapshot_unittest(), collect_protected_code(protected)
    result_class, loader = counting_result(), unittest.TestLoader()
    sys.path.insert(0, os.getcwd())
    for index, name in enumerate(tests):
        result = result_class()
        try:
            suite = loader.loadTestsFromName(name)
            unchanged = all(is_genuine(case) for case in suite)
            suite.run(result)
        except BaseException as error:  # SystemExit and KeyboardInterrupt in the code under test
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            unchanged = False
        for _, trace in result.errors + result.failures:
            sys.stderr.write(f"{name}\n{trace}\n")
        passed = result.testsRun == 1 and result.successes == 1 and result.wasSuccessful()
        honest = unchanged and is_intact()
        if passed and not honest:
            sys.stderr.write(f"{name}: unittest, the builtins or the test itself was replaced\n")
        sys.stderr.flush()
        write(report_pipe, f"{secret} {index} {'pass' if passed and honest else 'fail'}\n".encode())


def counting_result() -> type[Any]:
    """Return a result class that counts successes: a skipped test has not passed."""
    import unittest

    class Result(unittest.TestResult):
        successes = 0

        def addSuccess(self, test: object) -> None:
            self.successes += 1

    return Result


def snapshot_unittest() -> Callable[[], bool]:
    """Return a function that tells whether unittest and the builtins are still as they are now."""
    import builtins
    import unittest.case
    import unittest.loader
    import unittest.result
    import unittest.suite

    case, result, suite = unittest.case, unittest.result, unittest.suite
    owners: list[object] = [builtins, case, result, suite, unittest.loader, os]
    owners.append(sys.modules["__main__"])
    owners += [case.TestCase, result.TestResult, suite.BaseTestSuite, suite.TestSuite]
    before = [
        (owner, name, value, getattr(value, "__code__", None))
        for owner in owners
        for name, value in vars(owner).items()
        if name != "_"  # the interactive interpreter's last result
    ]
    get, get_vars = getattr, vars  # taken before the code under test can replace them

    def is_intact() -> bool:
        for owner, name, value, code in before:
            if get_vars(owner).get(name) is not value or get(value, "__code__", None) is not code:
                return False
        return True

    return is_intact


def collect_protected_code(protected: list[str]) -> Callable[[object], bool]:
    """Return a function that tells whether a test's code comes from a protected file."""
    known: set[object] = set()
    kind = type(collect_protected_code.__code__)

    def collect(code: CodeType) -> None:
        known.add(code)
        for constant in code.co_consts:
            if isinstance(constant, kind):
                collect(constant)

    for path in protected:
        files = [path] if path.endswith(".py") else []
        for folder, _, names in os.walk(path):
            files += [os.path.join(folder, name) for name in names if name.endswith(".py")]
        for file in files:
            try:
                with open(file, "rb") as source:
                    collect(compile(source.read(), file, "exec", dont_inherit=True))
            except (OSError, SyntaxError, ValueError):
                continue

    def is_genuine(case: object) -> bool:
        method: Any = getattr(type(case), getattr(case, "_testMethodName", ""), None)
        while hasattr(method, "__wrapped__"):  # of a decorated test
            method = method.__wrapped__
        return not known or getattr(method, "__code__", None) in known

    return is_genuine


if __name__ == "__main__":
    main()

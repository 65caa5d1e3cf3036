"""Run unittest ids of a work tree and print which pass; runs in the grading sandbox.

Runs as ``python -I -S test_runner.py`` in the work tree. Stdin has a nonce in the first line, the
number of tests in the second, then a line per test (``module.Class.method``), then a line per
protected path (the tests' own files). Stdout has one line ``NONCE start``, then ``NONCE INDEX
pass|fail`` per test as it ends, and last ``NONCE end`` if every test ended, in order, and nothing
was tampered with; else ``NONCE fault REASON``. Everything the tests print goes to stderr.

A child runs the tests. Its parent, which imports nothing of the work tree and whose memory and
descriptors it cannot read, reads the nonce after the fork, and only the parent writes to stdout. A
missing result counts as failed, so exits, crashes and printed results gain nothing. The child tells
its results to the relay (``relay.py``), and reports no success once unittest, the builtins or a
test were replaced. Code that speaks the relay's protocol could still forge a report: this stops
shortcuts, not a determined attack.
"""

# ruff: noqa: PTH109, PTH118, PTH120, PTH123 (pathlib takes 4 ms to import)

from __future__ import annotations

import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from runners.tasks.grading.inside import agentrl_channel, agentrl_guard, relay
else:
    sys.path.insert(0, os.path.dirname(__file__))
    import agentrl_channel
    import agentrl_guard
    import relay

    sys.path.pop(0)


def main() -> None:
    """Fork the child that runs the tests, and print its results."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    relay.attach_credentials(ours)
    request_read, request_write = os.pipe()
    relay.set_readable(False)  # before the fork: the child must never have been able to read us
    child = os.fork()
    if child == 0:
        relay.set_readable(True)  # code under test may look at its own process
        ours.close()
        os.close(request_write)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        try:
            run_tests(request_read, theirs)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    theirs.close()
    os.close(request_read)
    nonce, _, request = relay.read_request().partition("\n")
    relay.print_line(f"{nonce} start")
    with os.fdopen(request_write, "w", encoding="utf-8", errors="surrogateescape") as pipe:
        pipe.write(request)
    count = int(request.partition("\n")[0])
    results: list[str] = []
    ends: list[str] = []

    def handle(connection: relay.Peer, message: str) -> None:
        index, _, result = message.partition(" ")
        if index == "end" and not ends and len(results) == count:
            ends.append(result)
        elif index == str(len(results)) and result in ("pass", "fail") and len(results) < count:
            results.append(result)
            relay.print_line(f"{nonce} {index} {result}")
        else:
            connection.broken = True

    connection = relay.Peer(ours, child)
    relay.serve(child, handle, [connection])
    if connection.broken:
        relay.print_line(f"{nonce} fault something else than the test runner reported results")
    elif not ends:
        relay.print_line(f"{nonce} fault the tests ended before their end")
    elif ends[0]:
        relay.print_line(f"{nonce} fault {ends[0]} was replaced")
    else:
        relay.print_line(f"{nonce} end")


def run_tests(request_pipe: int, end: _socket.socket) -> None:
    """Run every requested test and report it; runs in the child."""
    import unittest

    with os.fdopen(request_pipe, encoding="utf-8", errors="surrogateescape") as pipe:
        count, *lines = pipe.read().split("\n")
    tests, protected = lines[: int(count)], lines[int(count) :]
    busy: list[str] = []
    tell = agentrl_channel.make_teller(end, busy)
    should_stop = agentrl_guard.watch_should_stop()
    result_class, loader = counting_result(), unittest.TestLoader()
    ours = (result_class, sys.modules["__main__"], agentrl_channel, agentrl_guard)
    find_replaced = agentrl_guard.snapshot(("unittest", "contextlib", "builtins"), ours)
    is_genuine, process = collect_protected_code(protected), os.getpid()
    sys.path.insert(0, os.getcwd())
    for index, name in enumerate(tests):
        result = result_class()
        replaced = "the test"
        busy.append(name)
        try:
            suite = loader.loadTestsFromName(name)
            if all(is_genuine(case) for case in suite):
                replaced = ""
            suite.run(result)
        except BaseException as error:  # SystemExit and KeyboardInterrupt in the code under test
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            replaced = "the end of the test"
        busy.clear()
        if os.getpid() != process:
            os._exit(1)  # the test forked, and its child came back here
        for _, trace in result.errors + result.failures:
            sys.stderr.write(f"{name}\n{trace}\n")
        passed = result.testsRun == 1 and result.successes == 1 and result.wasSuccessful()
        if passed:
            replaced = replaced or find_replaced() or ("a failure" if should_stop() else "")
            if replaced:
                sys.stderr.write(f"{name}: {replaced} was replaced: it does not pass\n")
        should_stop()
        sys.stderr.flush()
        tell(f"{index} {'pass' if passed and not replaced else 'fail'}")
    tell(f"end {find_replaced()}")


def counting_result() -> type[Any]:
    """Return a result class that counts successes: a skipped test has not passed."""
    import unittest

    class Result(unittest.TestResult):
        successes = 0

        def addSuccess(self, test: object) -> None:
            self.successes += 1

    return Result


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

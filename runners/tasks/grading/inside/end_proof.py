"""Prove that a Python of the script ran to its end; Python imports it at start (``sitecustomize``).

The relay learns of the process when it starts and, by ``atexit``, when it ends: a process that
leaves by ``os._exit``, ``exec`` or a signal never says so. Of ``python -m unittest`` it also learns
the result; of pytest the plugin tells (``agentrl_report.py``). Both are imported here, before the
work tree can be imported. The exit code of both is made to be the one of their tests at the very
end, because the code under test can call or replace ``sys.exit`` after them.

It runs in the Python of the project under test, from Python 3.6 on.
"""

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from runners.tasks.grading.inside import agentrl_channel, agentrl_guard
else:
    import agentrl_channel
    import agentrl_guard


def main() -> None:
    """Tell the relay of this process, and arrange for its end to be told."""
    words = read_command_line()
    is_program = os.environ.get("AGENTRL_PROGRAM", "none") in words
    if "AGENTRL_CHANNEL" in os.environ and "AGENTRL_PROGRAM" not in os.environ:
        run_as_program(words)
    is_command = "AGENTRL_COMMAND" in os.environ
    tell = agentrl_channel.get_teller(keep_variable=is_program and not is_command)
    if tell is None:
        return
    kind = "program" if is_program else find_kind(words)
    tell("process " + kind)
    statuses: list[int] = []
    atexit.register(make_leave(tell, statuses))  # the first to be registered runs last
    if kind in ("unittest", "program"):
        observe_unittest(tell, statuses.append if kind == "unittest" else None)
    elif kind == "pytest":
        agentrl_channel.NOTE_STATUS.append(statuses.append)
        import pytest  # noqa: F401


def make_leave(tell: "Callable[[str], None]", statuses: "list[int]") -> "Callable[[], None]":
    """Return a function for the end of the process: tells of it, and ends it with the last status
    of ``statuses``, if that is a failure.
    """
    leave, outputs = os._exit, (sys.stdout, sys.stderr)

    def at_end() -> None:
        tell("exit")
        if statuses and statuses[-1]:
            try:
                for output in outputs:
                    output.flush()
            finally:
                leave(statuses[-1])

    return at_end


def read_command_line() -> "list[str]":
    """Return the command line; ``sys.argv`` is not set yet."""
    try:
        with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123
            return file.read().decode("utf-8", "surrogateescape").split("\0")[:-1]
    except OSError:
        return []


def run_as_program(words: "list[str]") -> None:
    """Become ``f2p_program.py`` with the text of ``python -c TEXT``, if its exit code is its own
    word: it asserts, raises or exits. Of others, a main function say, the exit code is the code's
    under test.

    Only the script's own Pythons come here: those that they start have no channel.
    """
    flags, text, rest = split_command(words)
    if not any(word in text for word in ("assert", "raise", "exit")):
        return
    folder = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(folder, f"agentrl-command-{os.getpid()}.py")  # noqa: PTH118
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.environ["AGENTRL_PROGRAM"], os.environ["AGENTRL_COMMAND"] = path, "1"
    ours = os.path.join(os.path.dirname(os.path.abspath(__file__)), "f2p_program.py")  # noqa: PTH100, PTH118, PTH120
    os.execv(sys.executable, [sys.executable] + flags + [ours, path] + rest)  # noqa: RUF005


def split_command(words: "list[str]") -> "tuple[list[str], str, list[str]]":
    """Return the options before ``-c``, its text ("" if there is none), and the arguments.

    >>> split_command(["python3", "-W", "error", "-Bc", "assert f()", "x"])
    (['-W', 'error', '-B'], 'assert f()', ['x'])
    >>> split_command(["python3", "-m", "pytest", "-c", "setup.cfg"])
    ([], '', [])
    """
    flags, rest = [], words[1:]
    while rest and rest[0].startswith("-") and not rest[0].startswith("--"):
        word = rest.pop(0)
        letters = word[1:]
        if letters[:1] in ("W", "X"):
            flags.append(word)
            if len(letters) == 1 and rest:
                flags.append(rest.pop(0))
        elif "m" in letters.split("c")[0]:
            break
        elif "c" in letters:
            before, _, text = letters.partition("c")
            return (
                flags + (["-" + before] if before else []),
                text or "".join(rest[:1]),
                (rest if text else rest[1:]),
            )
        else:
            flags.append(word)
    return [], "", []


def find_kind(words: "list[str]") -> str:
    """Return "pytest" or "unittest" for ``python -m`` of these, else "python".

    >>> find_kind(["python", "-X", "dev", "-m", "pytest", "-q"])
    'pytest'
    """
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    return rest[1] if rest[:1] == ["-m"] and rest[1] in ("pytest", "unittest") else "python"


def observe_unittest(
    tell: "Callable[[str], None]", note_status: "Callable[[int], None] | None"
) -> None:
    """Tell the relay the result of unittest's main program; ``note_status`` gets its exit status,
    last that of the outermost run.
    """
    import unittest.main

    should_stop = agentrl_guard.watch_should_stop()
    runner = unittest.TextTestRunner
    run = runner.run

    def observed(self: "Any", test: "Any") -> "Any":
        result = run(self, test)
        bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
        other = len(result.skipped) + len(result.expectedFailures)
        good = 0 if should_stop() else result.testsRun - bad - other
        status = 0 if result.wasSuccessful() else 1
        tell(f"finish {status} {good} {bad} {find_replaced() or '-'}")
        if note_status is not None:
            note_status(status)
        return result

    runner.run = observed  # type: ignore[method-assign]
    find_replaced = agentrl_guard.snapshot(("unittest", "contextlib", "builtins"))


def run_next(name: str) -> None:
    """Import the ``sitecustomize`` that ours stands before, if there is one."""
    import importlib.machinery
    import importlib.util

    ours = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    others = [path for path in sys.path if os.path.abspath(path or ".") != ours]  # noqa: PTH100
    found = importlib.machinery.PathFinder.find_spec(name, others)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


if __name__ == "sitecustomize":
    try:
        main()
    finally:
        run_next("sitecustomize")

"""Eval scripts, which put a row's tests in place and run them, and programs that read their logs.

A program is run in the sandbox as ``PROGRAM STDOUT STDERR RESULT``, three paths, as SWE-bench-Pro's
parsers are, and writes ``{"tests": [{"name": …, "status": "PASSED"}, …]}`` to the last one.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Iterable
from functools import lru_cache

from runners.tasks.contract import ParserName, ScriptGrading
from runners.tasks.grading.graders.packages import check_parser, is_installed
from runners.tasks.grading.log_parsers import PYTEST_PARSERS
from runners.tasks.patches.diffs import read_paths
from runners.tasks.schemas.row import Judge, Row

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
ACTIVATE = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi"
"""The official images have the project's Python in a conda environment."""
DELIMITER = "EOF_114329324912"
PYTEST = "python -m pytest --no-header -rA --tb=short -p no:cacheprovider"
NOT_TESTS = frozenset({".json", ".png", ".csv", ".txt", ".md", ".jpg", ".pkl", ".yml", ".toml"})
"""Files of a test patch that are data."""
COUNTS_BOTH = "pass_and_fail"
"""``eval_type``: fail-to-pass and pass-to-pass tests count, passes and failures."""


def read_by_log_parser(
    script: str,
    row: Row,
    judge: Judge,
    *,
    log_parser: str = "parse_log_pytest",
    eval_type: str = COUNTS_BOTH,
    **more: str,
) -> ScriptGrading:
    """Return the grading by a log parser of ``swebench``, or by our plugin in its place.

    ``judge`` is ``task.grader``; ``more`` are further fields for the package. Raises PackageError
    without it where it is asked for, and ValueError if nobody here can read the output.
    """
    official = judge == "official" or (judge == "auto" and is_installed())
    if official:
        check_parser(log_parser)
    elif log_parser not in PYTEST_PARSERS or eval_type != COUNTS_BOTH:
        raise ValueError(
            f"{row.repo or 'it'} is not tested by pytest ({log_parser}), so our own "
            "grader cannot judge it: pip install 'agentrl-campaigns[swebench]' and leave "
            "task.grader=auto"
        )
    fields = {"repo": row.repo, "version": "", "image": "", **more}
    fields |= {"log_parser": log_parser, "eval_type": eval_type}
    kind: ParserName = "swebench" if official else "pytest"
    return ScriptGrading(kind, script, row.workdir, json.dumps(fields))


def build_test_script(
    workdir: str,
    test_patch: str,
    commands: Iterable[str],
    *,
    prepare: Iterable[str] = (),
    base_commit: str = "HEAD",
) -> str:
    """Return the script that resets the test files, applies the test patch and runs ``commands``.

    ``prepare`` runs before the patch. A script goes on after a command that fails, as SWE-bench's.
    """
    old = shlex.join(sorted(read_paths(test_patch).existing))
    # Images whose history was left out do not have the row's commit; HEAD is the same there.
    reset = f"git checkout {base_commit} -- {old}" if old else ": no test file to reset"
    lines = ["#!/bin/bash", "set -uxo pipefail", ACTIVATE, f"cd {workdir}"]
    lines += [f"git config --global --add safe.directory {workdir}", *prepare, reset]
    if test_patch:
        lines += [f"git apply -v - <<'{DELIMITER}'", test_patch.removesuffix("\n"), DELIMITER]
    lines += [f": '{START}'", *commands, f": '{END}'", reset, ""]
    return "\n".join(lines)


def find_test_files(test_patch: str) -> list[str]:
    """Return the files of a test patch that a test program can run, sorted."""
    paths = sorted(read_paths(test_patch).remaining)
    return [path for path in paths if posixpath.splitext(path)[1] not in NOT_TESTS]


def find_named_files(tests: Iterable[str]) -> list[str]:
    """Return the files of pytest ids, sorted."""
    return sorted({name.partition("::")[0].strip() for name in tests if "::" in name})


PYTEST_SUMMARY = '''\
import re


def parser(log):
    """Return the outcomes of the lines that ``pytest -rA`` prints at its end.

    A reason follows " - ", which may be in the parameters of a test, too.
    """
    found = {}
    for line in re.sub(r"\\x1b\\[[0-9;]*m", "", log).splitlines():
        word, _, rest = line.partition(" ")
        if word in ("PASSED", "XFAIL", "FAILED", "ERROR", "XPASS") and rest.strip():
            name = rest.strip()
            head = name.split(" - ")[0]
            if word != "PASSED" and head.count("[") > head.count("]"):
                end = name.find("] - ", len(head))
                name = name[: end + 1] if end >= 0 else name
            elif word != "PASSED":
                name = head
            found[name.strip()] = "pass" if word in ("PASSED", "XFAIL") else "fail"
    return found
'''
_CALL = """

if __name__ == "__main__":
    import json as _json
    import re as _re
    import sys as _sys

    with open(_sys.argv[1], errors="replace") as _file:
        _found = {function}(_file.read())
    _passing = ("pass", "passed", "xfail")
    _tests = [
        {{"name": {name}, "status": "PASSED" if str(_state).lower() in _passing else "FAILED"}}
        for _name, _state in _found.items()
    ]
    with open(_sys.argv[3], "w") as _file:
        _json.dump({{"tests": _tests}}, _file)
"""


@lru_cache(maxsize=64)  # thousands of rows share a parser, and keep one text of it
def wrap_function(source: str, function: str, *, name: str = "str(_name)") -> str:
    """Return the program that calls ``function`` of ``source`` with the text of stdout.

    The function returns test name → status; ``pass``, ``PASSED`` and ``XFAIL`` pass, in any case.
    ``name`` is an expression of the reported name, with ``_name`` and the module ``_re``.
    """
    return source + _CALL.format(function=function, name=name)

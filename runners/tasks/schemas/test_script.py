"""Eval scripts: put a row's tests in place, run them between SWE-bench's markers."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runners.tasks.contract import EvalScript
from runners.tasks.diffs import read_paths
from runners.tasks.graders.official import check_parser, is_installed
from runners.tasks.log_parsers import PYTEST_PARSERS
from runners.tasks.schemas.row import Judge

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
ACTIVATE = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi"
"""The official images have the project's Python in a conda environment."""
DELIMITER = "EOF_114329324912"
PYTEST = "python -m pytest --no-header -rA --tb=short -p no:cacheprovider"
NOT_TESTS = frozenset({".json", ".png", ".csv", ".txt", ".md", ".jpg", ".pkl", ".yml", ".toml"})
"""Files of a test patch that are data."""
COUNTS_BOTH = "pass_and_fail"
"""``eval_type``: fail-to-pass and pass-to-pass tests count, passes and failures."""


@dataclass(frozen=True, slots=True)
class ScriptReading:
    """Reader of the output of an eval script."""

    log_parser: str = "parse_log_pytest"
    eval_type: str = COUNTS_BOTH
    repo: str = ""
    version: str = ""
    image: str = ""

    @property
    def uses_pytest(self) -> bool:
        """True if our plugin can see the tests."""
        return self.log_parser in PYTEST_PARSERS and self.eval_type == COUNTS_BOTH

    def grade(self, script: str, workdir: str, judge: Judge) -> EvalScript:
        """Return the grading by this reading of a script.

        ``judge`` is ``task.grader``. Raises OfficialError without the ``swebench`` package where
        it is asked for, and ValueError if nobody here can read the output.
        """
        official = judge == "official" or (judge == "auto" and is_installed())
        if official:
            check_parser(self.log_parser)
        elif not self.uses_pytest:
            raise ValueError(
                f"{self.repo or 'it'} is not tested by pytest ({self.log_parser}), so our own "
                "grader cannot judge it: pip install 'agentrl[swebench]' and leave "
                "task.grader=auto"
            )
        kind: Literal["swebench", "pytest"] = "swebench" if official else "pytest"
        row = {
            "repo": self.repo,
            "version": self.version,
            "image": self.image,
            "log_parser": self.log_parser,
            "eval_type": self.eval_type,
        }
        return EvalScript(kind, script, workdir, json.dumps(row))


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
    paths = sorted(read_paths(test_patch).all)
    return [path for path in paths if posixpath.splitext(path)[1] not in NOT_TESTS]


def find_named_files(tests: Iterable[str]) -> list[str]:
    """Return the files of pytest ids, sorted."""
    return sorted({name.partition("::")[0] for name in tests if "::" in name})

"""Tell from a row alone which tasks no canary can check; their repositories need not exist yet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from runners.tasks.contract import CustomGrading, HarborVerifier, ScriptGrading, Task
from runners.tasks.grading.canaries.negated_tests import find_program_negations
from runners.tasks.grading.canaries.source_file import SourceFile
from runners.tasks.grading.canaries.test_texts import UnreadableTestsError, find_source
from runners.tasks.patches.diffs import read_paths

NO_GOLD = "without a reference patch"
NO_PYTHON = "without a Python test file"
NO_TEST_FILES = "with tests that are only in their image"
OWN_VERIFIER = "graded by their own verifiers"
PLUGIN = "graded by a plug-in"
_RUNS_PYTHON = re.compile(r"\b(pytest|unittest)\b(?! +[\w./-]*test)")
"""A command that names no test: its runner finds them."""
NO_CLAIM = "without a comparison in their program"


def count_uncheckable(tasks: Iterable[Task]) -> dict[str, int]:
    """Return the number of tasks that will be unverified, by reason.

    Further ones may turn out when their tests are read.
    """
    return dict(Counter(reason for task in tasks if (reason := _find_obstacle(task))))


def _find_obstacle(task: Task) -> str:
    if isinstance(task.grading, HarborVerifier):
        return OWN_VERIFIER
    if isinstance(task.grading, CustomGrading):
        return PLUGIN
    if not task.gold_patch:
        return NO_GOLD
    try:
        source = find_source(task)
    except UnreadableTestsError:
        return NO_TEST_FILES
    paths = frozenset(task.protected)
    grading = task.grading
    if isinstance(grading, ScriptGrading) and _RUNS_PYTHON.search(grading.script):
        return ""  # what it collects is found in the repository
    if source != "files":
        assert isinstance(task.grading, ScriptGrading)
        script = task.grading.script
        if source == "program":
            file = SourceFile.parse(script.encode())
            return "" if file and find_program_negations(file) else NO_CLAIM
        paths = read_paths(script).all
    # A path without a suffix may be a directory of tests.
    return "" if any(path.endswith(".py") or "." not in path for path in paths) else NO_PYTHON

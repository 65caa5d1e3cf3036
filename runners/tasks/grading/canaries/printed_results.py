"""Results that a command prints, where its exit code decides and no process of ours proves its end.

Code under test can end a process with exit code 0 before its tests have run, in any language. What
the reference patch's runs print as passed, twice alike, must be printed by a solution's run too.
Printed lines can be forged, so this holds against blind exits only.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict

from runners.tasks.contract import GradingKey, ScriptGrading, Task, VerdictKind
from runners.tasks.grading.canaries.calibration import NotCalibratedError, RunTests
from runners.tasks.patches.patch import decode_patch

_PROVEN = re.compile(r"\b(python[\d.]*|py\.?test|unittest|tox|nox)\b")
"""Words of commands whose end Python proves."""
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_DURATION = re.compile(
    r"[(\[]?\b(time|duration)?[=: ]*\d+(\.\d+)? ?(ms|µs|us|s|secs?|seconds?)\b[)\]]?", re.I
)
_PASSED = re.compile(
    r"^\W*(ok|pass|passed|success)\b"  # ok 1 - a, PASS a.js, [ OK ] a, --- PASS: a
    r"|^\s*[✓✔√]"
    r"|\b(ok|passed)\s*$"  # test a ... ok, Test #1: a .... Passed
    r"|^\W*\d+ (tests? )?(passing|passed)\b|\btests? passed\b|^tests?:.*\bpassed\b",
    re.I,
)
NAMED = 3
"""Lines in a reason."""


class PrintedResults:
    """The results that the reference patch of each task prints."""

    def __init__(self, run_tests: RunTests) -> None:
        self._run_tests = run_tests
        self._known: dict[GradingKey, frozenset[str]] = {}
        self._locks: defaultdict[GradingKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def find_missing(self, task: Task, log: str, *, name: str, deadline_s: float) -> str:
        """Return why a run with exit code 0 is no solution; "" if its log has all results.

        Raises NotCalibratedError if the reference patch cannot be graded.
        """
        grading = task.grading
        if not isinstance(grading, ScriptGrading) or grading.kind != "eval_cmd" or grading.parser:
            return ""
        if not task.gold_patch or _PROVEN.search(grading.script):
            return ""
        missing = await self._find_wanted(task, name, deadline_s) - read_results(log)
        if not missing:
            return ""
        shown = "; ".join(sorted(missing)[:NAMED])
        return f"exit code 0, but {len(missing)} results of its tests are not printed ({shown})"

    async def _find_wanted(self, task: Task, name: str, deadline_s: float) -> frozenset[str]:
        key = task.grading_key
        async with self._locks[key]:
            if key not in self._known:
                runs = [
                    await self._run_reference(task, f"{name}-printed-{number}", deadline_s)
                    for number in range(2)
                ]
                self._known[key] = runs[0] & runs[1]
        return self._known[key]

    async def _run_reference(self, task: Task, name: str, deadline_s: float) -> frozenset[str]:
        patch = decode_patch(task.gold_patch, {})
        verdict = await self._run_tests.grade(task, patch, name=name, deadline_s=deadline_s)
        if verdict.kind is VerdictKind.INFRA:
            reason = f"the reference patch could not be graded: {verdict.reason}"
            raise NotCalibratedError(reason)
        return read_results(verdict.log) if verdict.kind is VerdictKind.SOLVED else frozenset()


def read_results(log: str) -> frozenset[str]:
    r"""Return the lines of a log that say that something passed, without style and durations.

    >>> sorted(read_results("ok 1 - adds # time=3.1ms\nnot ok 2 - x\n  \u2713 works (12 ms)"))
    ['ok 1 - adds #', '\u2713 works']
    """
    lines = (_DURATION.sub("", _STYLE.sub("", line)) for line in log.splitlines())
    return frozenset(" ".join(line.split()) for line in lines if _PASSED.search(line))

"""Verdicts from counts of passed tests or from an exit code, and what the judges share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from runners.sandboxes.contract import CommandResult
from runners.tasks.contract import (
    SETS,
    DecidingTest,
    Task,
    TestResult,
    TestSet,
    Verdict,
    VerdictKind,
    void_passed_tests,
)

DOES_NOT_APPLY = "patch does not apply"
"""Beginning of the reason of the verdict on a patch that git refuses; git's own follows."""
_NAMED, _NAME_LENGTH = 3, 120
"""Tests that a reason names, and characters of a name; the verdict has all of them."""
OUTPUT_LIMIT = 32 << 20
"""Bytes: ample, because a truncated log loses results."""
INSIDE = "/opt/agentrl/grading"
"""Folder of the judges' programs in the sandbox."""


def killed_after_s(result: CommandResult) -> float | None:
    """Return the seconds after which its deadline killed a command; None if it ended by itself."""
    return result.duration_s if result.timed_out else None


def list_results(
    task: Task,
    result_of: Callable[[str], TestResult],
    result_of_kept: Callable[[str], TestResult] | None = None,
) -> tuple[DecidingTest, ...]:
    """Return the results of a task's tests; ``result_of_kept`` is of pass-to-pass tests."""
    kept = result_of_kept or result_of
    fixed = [DecidingTest(name, "fail_to_pass", result_of(name)) for name in task.fail_to_pass]
    return (*fixed, *(DecidingTest(n, "pass_to_pass", kept(n)) for n in task.pass_to_pass))


def judge_tests(
    task: Task,
    tests: Sequence[DecidingTest],
    *,
    log: bytes,
    late_s: float | None = None,
    unproven: str = "",
    missing_passes: bool = False,
) -> Verdict:
    """Return solved if every test passed; ``late_s``: seconds until the deadline ended them.

    ``unproven`` says why the results are no proof, else it is ""; tests that passed are void then,
    unless the deadline ended them. ``missing_passes``: a pass-to-pass test without a result counts
    as passed.

    A task without tests is never solved.
    """
    if not tests:
        return make_verdict(task, VerdictKind.UNSOLVED, "the task names no test", log=log)
    absent = count_results(tests, "pass_to_pass", "missing") if missing_passes else 0
    passed = sum(test.result == "passed" for test in tests) + absent == len(tests)
    solved = passed and late_s is None and not unproven
    reason = unproven if passed and unproven else _reason(tests, absent)
    if late_s is not None:
        reason = f"the tests did not end within {late_s:.0f} s"
    kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
    verdict = make_verdict(task, kind, reason, log=log, timed_out=late_s is not None)
    verdict = replace(
        verdict,
        tests=tuple(tests),
        fail_to_pass_passed=count_results(tests, "fail_to_pass", "passed"),
        pass_to_pass_passed=count_results(tests, "pass_to_pass", "passed") + absent,
    )
    # Tests that the deadline killed have no proof of their end either, and that says nothing.
    return void_passed_tests(verdict) if unproven and late_s is None else verdict


def judge_exit_code(task: Task, code: int, *, log: bytes, late_s: float | None) -> Verdict:
    """Return solved for exit code 0; all tests of the task count as passed, else none."""
    late = late_s is not None
    solved = code == 0 and not late
    reason = f"the command ended with exit code {code}"
    if late:
        reason = f"the command did not end within {late_s:.0f} s"
    kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
    verdict = make_verdict(task, kind, reason, log=log, timed_out=late)
    if not solved:
        return verdict
    return replace(
        verdict,
        fail_to_pass_passed=len(task.fail_to_pass),
        pass_to_pass_passed=len(task.pass_to_pass),
    )


def make_verdict(
    task: Task,
    kind: VerdictKind,
    reason: str,
    *,
    log: bytes = b"",
    timed_out: bool = False,
) -> Verdict:
    """Return a verdict without passed tests, whose duration is not known yet."""
    return Verdict(
        kind=kind,
        fail_to_pass_passed=0,
        fail_to_pass_total=len(task.fail_to_pass),
        pass_to_pass_passed=0,
        pass_to_pass_total=len(task.pass_to_pass),
        reason=reason,
        log=log.decode(errors="replace"),
        duration_s=0.0,
        timed_out=timed_out,
    )


def count_results(
    tests: Iterable[DecidingTest], test_set: TestSet, result: TestResult | None = None
) -> int:
    """Return the number of tests in a set, or of those with a result."""
    return sum(t.test_set == test_set and result in (None, t.result) for t in tests)


def _reason(tests: Sequence[DecidingTest], absent: int) -> str:
    """Return what failed and what did not run, by name; ``absent``: pass-to-pass tests without a
    result, which is no failure.
    """
    parts = []
    for test_set in SETS:
        total = count_results(tests, test_set)
        for results, verb in ((("failed", "void"), "fail"), (("missing",), "did not run")):
            own = (test for test in tests if test.test_set == test_set)
            names = [test.name for test in own if test.result in results]
            may_be_absent = absent and test_set == "pass_to_pass" and verb == "did not run"
            if names and not may_be_absent:
                what = f"{len(names)} of {total} {test_set.replace('_', '-')} tests {verb}"
                parts.append(f"{what} ({name_tests(names)})")
    return ", ".join(parts) or "all tests pass"


def name_tests(names: Sequence[str]) -> str:
    """Return the first names of a list, cut to a bounded length, and the number of the others."""
    shown = ", ".join(
        name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}…" for name in names[:_NAMED]
    )
    more = len(names) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown

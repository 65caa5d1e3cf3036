"""Verdicts from counts of passed tests or from an exit code, and what the judges share."""

from __future__ import annotations

from dataclasses import dataclass

from runners.sandboxes.contract import CommandResult
from runners.tasks.contract import Task, Verdict, VerdictKind

DOES_NOT_APPLY = "patch does not apply"
"""Reason of the verdict on a patch that git refuses."""
OUTPUT_LIMIT = 32 << 20
"""Bytes: ample, because a truncated log loses results."""
INSIDE = "/opt/agentrl/grading"
"""Folder of the judges' programs in the sandbox."""


@dataclass(frozen=True, slots=True)
class PassedCounts:
    """Numbers of passed tests."""

    fail_to_pass: int = 0
    pass_to_pass: int = 0


def killed_after_s(result: CommandResult) -> float | None:
    """Return the seconds after which its deadline killed a command; None if it ended by itself."""
    return result.duration_s if result.timed_out else None


def judge_counts(
    task: Task, tally: PassedCounts, *, log: bytes, late_s: float | None = None
) -> Verdict:
    """Return solved if every test passed; ``late_s``: seconds until the deadline ended them."""
    first, second = len(task.fail_to_pass), len(task.pass_to_pass)
    solved = (tally.fail_to_pass, tally.pass_to_pass) == (first, second) and late_s is None
    reason = _reason(task, tally)
    if late_s is not None:
        reason = f"the tests did not end within {late_s:.0f} s"
    kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
    return make_verdict(task, kind, reason, tally=tally, log=log, timed_out=late_s is not None)


def judge_exit_code(task: Task, code: int, *, log: bytes, late_s: float | None) -> Verdict:
    """Return solved for exit code 0; all tests of the task count as passed, else none."""
    late = late_s is not None
    solved = code == 0 and not late
    reason = f"the command ended with exit code {code}"
    if late:
        reason = f"the command did not end within {late_s:.0f} s"
    kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
    every = PassedCounts(len(task.fail_to_pass), len(task.pass_to_pass))
    tally = every if solved else PassedCounts()
    return make_verdict(task, kind, reason, tally=tally, log=log, timed_out=late)


def make_verdict(
    task: Task,
    kind: VerdictKind,
    reason: str,
    *,
    tally: PassedCounts | None = None,
    log: bytes = b"",
    timed_out: bool = False,
) -> Verdict:
    """Return a verdict whose duration is not known yet."""
    tally = tally or PassedCounts()
    return Verdict(
        kind=kind,
        fail_to_pass_passed=tally.fail_to_pass,
        fail_to_pass_total=len(task.fail_to_pass),
        pass_to_pass_passed=tally.pass_to_pass,
        pass_to_pass_total=len(task.pass_to_pass),
        reason=reason,
        log=log.decode(errors="replace"),
        duration_s=0.0,
        timed_out=timed_out,
    )


def _reason(task: Task, tally: PassedCounts) -> str:
    failing = [
        f"{total - passed} of {total} {name} tests fail"
        for name, passed, total in (
            ("fail-to-pass", tally.fail_to_pass, len(task.fail_to_pass)),
            ("pass-to-pass", tally.pass_to_pass, len(task.pass_to_pass)),
        )
        if passed < total
    ]
    return ", ".join(failing) or "all tests pass"

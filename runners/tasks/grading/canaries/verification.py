"""Verify a verdict that pays: run canaries on the patch, and judge what they show.

A patch that passes a test which every right solution fails has made its tests pass without doing
what they ask. One such canary may be chance: after the first, two of three decide. An exit code
says one bit for a whole run; there each of two runs is drawn to be one that must fail or one that
must pass, so that a patch that knows which run it is in still has to guess what is asked of it.

Of a task solved in part, only the tests that pass are looked at: whoever fails a test may pass its
negation.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace

from runners.tasks.contract import (
    SETS,
    Patch,
    Task,
    TestSet,
    Verdict,
    VerdictKind,
    void_passed_tests,
)
from runners.tasks.grading.canaries.calibration import (
    Calibration,
    Canary,
    NotCalibratedError,
    RunTests,
    Sort,
)
from runners.tasks.grading.canaries.printed_results import PrintedResults
from runners.tasks.grading.canaries.test_texts import PlacedTask, UnreadableTestsError
from runners.tasks.grading.canaries.variants import is_judged_by_exit_code

LEAST_S = 30.0
SLACK = 10.0
"""A canary does the work of the tests that have just passed: it gets so many times their time."""
NO_VARIANT = "no assertion of its tests can be changed so that the reference patch fails"
NOT_COVERED = "no canary changes a test that passes"
ORDERS: tuple[tuple[Sort, Sort], ...] = (
    ("negated", "reworded"),
    ("reworded", "negated"),
    ("negated", "negated"),
)
"""Canaries of an exit code, drawn with equal chances: whoever guesses has a chance of 1 in 3."""
OTHER_INPUTS = "the tests pass, with other inputs they do not"
NAMED = 5
"""Ids in an accusation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one canary."""

    accusation: str = ""
    """Evidence of tampering, else ""."""
    failure: str = ""
    """Reason why the patch is no solution, else ""."""
    empty: bool = False
    """No test had a result, although those of the real tests had."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A patch whose verdict pays, unless its canaries contradict."""

    task: Task
    patch: Patch
    verdict: Verdict
    """On the unchanged tests."""
    name: str
    """Begins the names of the canaries' gradings."""
    deadline_s: float
    """Of each grading."""

    @property
    def in_part(self) -> bool:
        """Return whether only a part of the task is solved."""
        return self.verdict.kind is not VerdictKind.SOLVED


class Verification:
    """Runs canaries on patches that solve a task, and where that pays, on those that solve a part
    of it.
    """

    def __init__(
        self,
        run_tests: RunTests,
        level: int,
        *,
        runs: int = 1,
        partial_credit: bool = False,
        secret: str | None = None,
    ) -> None:
        """Prepare.

        ``level`` 1: one canary per patch, two where an exit code decides; 2: always also the same
        tests in other words. ``runs``: gradings of the reference patch per canary.
        ``partial_credit``: a part of a task is paid.
        """
        self._run_tests = run_tests
        self._level = level
        self._partial_credit = partial_credit
        self._calibration = Calibration(run_tests, runs=runs, secret=secret)
        self._printed = PrintedResults(run_tests)

    async def place_real_tests(self, task: Task) -> PlacedTask:
        """Return the task whose own tests a patch cannot tell from a canary's by their form."""
        if self._level == 0:
            return PlacedTask(task, {})
        return await self._calibration.place_real_tests(task)

    async def verify(
        self, task: Task, patch: Patch, verdict: Verdict, *, name: str, deadline_s: float
    ) -> Verdict:
        """Return the verdict after its canaries; one that does not pay is returned as it is.

        An infrastructure failure of a canary is one of the grading: no grade. A task that no canary
        can check may be solved all the same, but not in part: the tests that pass are void then.
        """
        in_part = self._partial_credit and verdict.solved_in_part
        if self._level == 0 or not (verdict.kind is VerdictKind.SOLVED or in_part):
            return verdict
        limit_s = min(deadline_s, LEAST_S + SLACK * verdict.duration_s)
        started = time.monotonic()
        try:
            missing = await self._printed.find_missing(
                task, verdict.log, name=name, deadline_s=deadline_s
            )
            if missing:
                return _unsolved(verdict, missing)
            found = await self._verify(_Claim(task, patch, verdict, name, limit_s))
        except UnreadableTestsError as error:
            found = replace(verdict, unverified=str(error))
        except NotCalibratedError as error:
            return replace(verdict, kind=VerdictKind.INFRA, reason=str(error))
        if in_part and found.unverified:
            found = void_passed_tests(found)
        spent_s = time.monotonic() - started
        return replace(found, duration_s=verdict.duration_s + spent_s)

    async def _verify(self, claim: _Claim) -> Verdict:
        accusations: list[str] = []
        acquittals = 0
        used: frozenset[int] = frozenset()
        while len(accusations) < 2 and acquittals < min(2, 1 + len(accusations)):
            canary = await self._draw(claim, used)
            if canary is None and not used:
                reason = NOT_COVERED if claim.in_part else NO_VARIANT
                return replace(claim.verdict, unverified=reason)
            if canary is None:  # the only variant accuses: run it again, against chance
                used = frozenset()
                continue
            if is_judged_by_exit_code(canary.placed.task):
                return await self._verify_exit_code(claim, canary)
            used |= {canary.number}
            finding = await self._run(claim, canary, "negated")
            if finding.failure:
                return _unsolved(claim.verdict, finding.failure)
            if finding.accusation:
                accusations.append(finding.accusation)
            else:
                acquittals += 1
        if len(accusations) == 2:
            return _tampered(claim.verdict, accusations)
        reworded = await self._draw_reworded(claim) if self._level == 2 else None
        finding = await self._run(claim, reworded, "reworded") if reworded else Finding()
        return _unsolved(claim.verdict, finding.failure) if finding.failure else claim.verdict

    async def _verify_exit_code(self, claim: _Claim, negated: Canary) -> Verdict:
        """Run two canaries in an order that is drawn; after an accusation one more.

        One accusation may be chance, and is none then; but no reward either: a patch that knows its
        run could be honest in the ones that follow.
        """
        reworded = await self._draw_reworded(claim)
        order = secrets.SystemRandom().choice(ORDERS) if reworded else ORDERS[-1][:1]
        accusations: list[str] = []
        for sort in order:
            canary = reworded if sort == "reworded" and reworded else negated
            finding = await self._run(claim, canary, sort)
            if finding.failure:
                return _unsolved(claim.verdict, finding.failure)
            if finding.accusation:
                accusations.append(finding.accusation)
                break
            if sort == "negated":
                negated = await self._draw(claim, frozenset({negated.number})) or negated
        if not accusations:
            return claim.verdict
        other = await self._draw(claim, frozenset({negated.number})) or negated
        finding = await self._run(claim, other, "negated")
        if finding.accusation:
            return _tampered(claim.verdict, [*accusations, finding.accusation])
        return _unsolved(claim.verdict, accusations[0])

    async def _draw(self, claim: _Claim, used: frozenset[int]) -> Canary | None:
        """Return a canary not yet used, or None; for a task solved in part, one that changes a
        fail-to-pass test that passes.
        """
        passed = _passed_names(claim.verdict, "fail_to_pass")
        while True:
            canary = await self._calibration.draw(
                claim.task, "negated", but=used, name=claim.name, deadline_s=claim.deadline_s
            )
            if canary is None or not claim.in_part:
                return canary
            if passed & {canary.origin(name) for name in canary.placed.task.fail_to_pass}:
                return canary
            used |= {canary.number}

    async def _draw_reworded(self, claim: _Claim) -> Canary | None:
        """Return the same tests in other words; None where nothing can be reworded."""
        return await self._calibration.draw(
            claim.task, "reworded", but=frozenset(), name=claim.name, deadline_s=claim.deadline_s
        )

    async def _run(self, claim: _Claim, canary: Canary, sort: Sort) -> Finding:
        """Run a canary; once more if it has no results, which may be the machine's doing."""
        name = f"canary-{canary.number}" if sort == "negated" else "reworded"
        finding = await self._run_once(claim, canary, sort, name)
        if finding.empty:
            finding = await self._run_once(claim, canary, sort, f"{name}-again")
        return finding

    async def _run_once(self, claim: _Claim, canary: Canary, sort: Sort, name: str) -> Finding:
        placed = canary.placed
        verdict = await self._run_tests.grade(
            placed.task,
            claim.patch,
            name=f"{claim.name}-{name}",
            deadline_s=claim.deadline_s,
            files=placed.files,
        )
        if verdict.kind is VerdictKind.INFRA:
            raise NotCalibratedError(f"the canary could not be graded: {verdict.reason}")
        if is_judged_by_exit_code(placed.task):
            return _judge_exit_code(verdict, sort, canary)
        if not verdict.tests and not verdict.timed_out:
            return Finding(failure=f"the tests pass; of changed ones: {verdict.reason}", empty=True)
        return judge_canary(verdict, canary, claim.verdict)


def _judge_exit_code(verdict: Verdict, sort: Sort, canary: Canary) -> Finding:
    solved = verdict.kind is VerdictKind.SOLVED
    if sort == "negated" and solved:
        changed = ", ".join(canary.changes)
        return Finding(accusation=f"a command that must fail ended with exit code 0 ({changed})")
    if sort == "reworded" and not solved:
        return Finding(failure="the tests pass, the same tests in other words do not")
    return Finding()


def _passed_names(verdict: Verdict, *sets: TestSet) -> frozenset[str]:
    """Return the names of the tests of some sets that passed."""
    return frozenset(t.name for t in verdict.tests if t.test_set in sets and t.result == "passed")


def judge_canary(verdict: Verdict, canary: Canary, real: Verdict) -> Finding:
    """Return what a canary shows; of a task solved in part, only by the tests that passed."""
    looked_at = list(verdict.tests)
    if real.kind is not VerdictKind.SOLVED:
        known = _passed_names(real, *SETS)
        looked_at = [test for test in looked_at if canary.origin(test.name) in known]
    failed = {
        test.name
        for test in looked_at
        if test.test_set == "pass_to_pass" and not test.reported_passed
    }
    if canary.line_up and failed & canary.line_up.right and not verdict.timed_out:
        reason = (
            OTHER_INPUTS if failed & canary.unseen else "the tests pass, among others they do not"
        )
        return Finding(failure=reason)
    must_fail = [test for test in looked_at if test.test_set == "fail_to_pass"]
    passed = [test.name for test in must_fail if test.reported_passed]
    if passed:
        names = ", ".join(passed[:NAMED])
        wanted = len(must_fail)
        accusation = (
            f"canary: {len(passed)} of {wanted} tests that must fail were reported as passed "
            f"({names}{', …' if len(passed) > NAMED else ''}; {', '.join(canary.changes)})"
        )
        return Finding(accusation=accusation)
    if verdict.timed_out:
        return Finding(failure="the tests end in time, changed ones do not")
    if failed & canary.unseen:
        return Finding(failure=OTHER_INPUTS)
    if failed:
        return Finding(failure="the tests pass, the same tests in other words do not")
    return Finding()


def _tampered(verdict: Verdict, accusations: list[str]) -> Verdict:
    return replace(
        _unsolved(verdict, "the tests pass without doing what they ask"),
        tampered="; ".join(dict.fromkeys(accusations)),
    )


def _unsolved(verdict: Verdict, reason: str) -> Verdict:
    """Return an unsolved verdict; tests that passed are void, so that no part is rewarded."""
    return replace(void_passed_tests(verdict), kind=VerdictKind.UNSOLVED, reason=reason)

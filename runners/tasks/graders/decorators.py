"""What can stand around any grader: the repository made first, a second look at flaky tests, and
identical patches graded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from conf.errors import AgentrlError, error_text
from runners.tasks.contract import Grader, Patch, Task, Verdict, VerdictKind
from runners.tasks.graders.verdicts import make_verdict

Ready = Callable[[Task], Awaitable[Task]]
"""Returns a task with its repository there; raises AgentrlError."""


class ReadyFirst:
    """Has the task's repository made before it grades."""

    def __init__(self, grader: Grader, ready: Ready) -> None:
        self._grader = grader
        self._ready = ready

    async def grade(self, task: Task, patch: Patch, *, name: str, deadline_s: float) -> Verdict:
        """Grade; a repository that cannot be made is infra."""
        try:
            task = await self._ready(task)
        except AgentrlError as error:
            return make_verdict(
                task, VerdictKind.INFRA, f"{type(error).__name__}: {error_text(error)}"
            )
        return await self._grader.grade(task, patch, name=name, deadline_s=deadline_s)


class SecondLook:
    """Grades again, in a fresh sandbox, when only pass-to-pass tests fail: those passed before, so
    it may be chance. One good run decides.
    """

    def __init__(self, grader: Grader, reruns: int) -> None:
        self._grader = grader
        self._reruns = reruns

    async def grade(self, task: Task, patch: Patch, *, name: str, deadline_s: float) -> Verdict:
        """Grade, at most ``1 + reruns`` times."""
        first = await self._grader.grade(task, patch, name=name, deadline_s=deadline_s)
        spent = first.duration_s
        for number in range(1, self._reruns + 1):
            if not _only_kept_tests_fail(first):
                break
            again = await self._grader.grade(
                task, patch, name=f"{name}-{number}", deadline_s=deadline_s
            )
            spent += again.duration_s
            if again.kind is VerdictKind.SOLVED:
                reason = f"{again.reason} (run {number + 1}; before: {first.reason})"
                return replace(again, reason=reason, duration_s=spent)
        return replace(first, duration_s=spent)


def _only_kept_tests_fail(verdict: Verdict) -> bool:
    return (
        verdict.kind is VerdictKind.UNSOLVED
        and not verdict.timed_out
        and verdict.fail_to_pass_passed == verdict.fail_to_pass_total > 0
        and verdict.pass_to_pass_passed < verdict.pass_to_pass_total
    )


class OncePerPatch:
    """Grades an identical patch of a task once; infra verdicts are not remembered."""

    def __init__(self, grader: Grader) -> None:
        self._grader = grader
        self._graded: dict[tuple[str, str, str], Verdict] = {}
        self._grading: dict[tuple[str, str, str], asyncio.Event] = {}

    async def grade(self, task: Task, patch: Patch, *, name: str, deadline_s: float) -> Verdict:
        """Grade, or return what was found before; who waits for one that fails grades himself."""
        key = (task.id, task.base_commit, patch.refused or patch.sha256)
        while key in self._grading:
            await self._grading[key].wait()
        if key in self._graded:
            return self._graded[key]
        self._grading[key] = asyncio.Event()
        try:
            found = await self._grader.grade(task, patch, name=name, deadline_s=deadline_s)
            if found.kind is not VerdictKind.INFRA:
                self._graded[key] = found
            return found
        finally:
            self._grading.pop(key).set()

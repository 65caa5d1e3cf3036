"""The grader of a run's tasks: one run of the tests, with four steps around it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from conf.errors import AgentrlError, error_text
from runners.records.text import make_printable, shorten
from runners.sandboxes.contract import Sandbox
from runners.system.processes import atomic_file
from runners.tasks.contract import (
    SETS,
    GradingKey,
    HarborVerifier,
    Patch,
    Task,
    Verdict,
    VerdictKind,
)
from runners.tasks.grading.canaries.calibration import RunTests
from runners.tasks.grading.canaries.scan import find_signs
from runners.tasks.grading.canaries.test_texts import PlacedTask
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.verdicts import make_verdict
from runners.tasks.grading.rollout_result import RolloutResult
from runners.tasks.patches.command_files import Role
from runners.tasks.patches.diffs import read_paths
from runners.tasks.patches.patch import decode_patch
from runners.tasks.patches.protection import find_tampering

EnsureRepository = Callable[[Task], Awaitable[Task]]
"""Returns a task whose repository exists; raises AgentrlError."""
FOLDER = Path("logs", "grading")
"""Below a run's directory."""
TAIL = 4000
"""Characters of the log that a verdict keeps."""
LINE = 1000
"""Characters of a verdict's reason, and of its evidence of tampering."""


NO_PATCH = (
    "this task is graded in the end state of its agent's sandbox, which is gone: only a new "
    "rollout can be graded"
)


class EndStates(Protocol):
    """Grades sandboxes as agents left them (``harbor/end_state.py``)."""

    async def grade(self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float) -> Verdict:
        """Grade a sandbox; see ``Grader.grade_end_state``."""
        ...

    async def grade_reference(
        self, task: Task, *, solve: bool, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the solution or the untouched environment; see ``Grader.grade_reference``."""
        ...


class TaskGrader:
    """A ``Grader`` by tests, which look at the patch alone; ``run_tests`` runs them once.

    It goes through five steps, from the outside in:

    1. VerdictCache, if it ``remembers``: an identical patch of a task is graded once
       (``Task.grading_key``); infra verdicts are not cached.
    2. GradingLog: the whole log goes to a file below ``log_dir``, its end stays in the verdict.
    3. EnsureRepository: the task's repository is made first; failing that, the verdict is infra.
    4. Verification: canaries check a solved verdict; signs of tampering are noted.
    5. FlakyRetry: if only pass-to-pass tests fail, grade again, up to ``flaky_reruns`` times. They
       passed at the base commit, so it may be chance, and one good run decides.
    """

    def __init__(
        self,
        run_tests: RunTests,
        ensure_repository: EnsureRepository,
        *,
        flaky_reruns: int = 0,
        verification: Verification | None = None,
        log_dir: Path | None = None,
        end_states: EndStates | None = None,
        remembers: bool = True,
    ) -> None:
        self._run_tests = run_tests
        self._ensure_repository = ensure_repository
        self._flaky_reruns = flaky_reruns
        self._verification = verification
        self._log_dir = log_dir
        self._end_states = end_states
        self._remembers = remembers
        self._verdicts: dict[tuple[GradingKey, str], Verdict] = {}
        self._in_progress: dict[tuple[GradingKey, str], asyncio.Event] = {}

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the patch of a rollout; see ``Grader``."""
        patch = result.patch
        if not self._remembers:
            return await self._grade_and_log(task, patch, name, deadline_s)
        key = (task.grading_key, patch.refused or patch.sha256)
        # A loop, as several callers may wait for a grading that fails or is cancelled: the first to
        # wake grades, the others wait again.
        while key in self._in_progress:
            await self._in_progress[key].wait()
        if key in self._verdicts:
            return self._verdicts[key]
        self._in_progress[key] = asyncio.Event()
        try:
            verdict = await self._grade_and_log(task, patch, name, deadline_s)
            if verdict.kind is not VerdictKind.INFRA:
                self._verdicts[key] = verdict
            return verdict
        finally:
            self._in_progress.pop(key).set()

    async def grade_end_state(
        self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade what an agent left in its sandbox, once: the sandbox is gone afterwards."""
        assert self._end_states is not None
        verdict = await self._end_states.grade(task, sandbox, name=name, deadline_s=deadline_s)
        return await self._shorten(task, name, verdict)

    async def grade_reference(
        self, task: Task, *, solve: bool, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the reference patch or solution or, unless ``solve``, the unchanged task."""
        if not isinstance(task.grading, HarborVerifier):
            patch = decode_patch(task.gold_patch if solve else "", {})
            result = RolloutResult.of_patch(patch)
            return await self.grade(task, result, name=name, deadline_s=deadline_s)
        assert self._end_states is not None
        verdict = await self._end_states.grade_reference(
            task, solve=solve, name=name, deadline_s=deadline_s
        )
        return await self._shorten(task, name, verdict)

    async def _shorten(self, task: Task, name: str, verdict: Verdict) -> Verdict:
        """Return the verdict with the end of its log; the whole goes to a file."""
        if self._log_dir is not None:
            await keep_log(self._log_dir / FOLDER / task.id / f"{name}.txt", verdict)
        return _make_printable(verdict)

    async def _grade_and_log(
        self, task: Task, patch: Patch, name: str, deadline_s: float
    ) -> Verdict:
        if isinstance(task.grading, HarborVerifier):
            return make_verdict(task, VerdictKind.INFRA, NO_PATCH)
        try:
            ready = await self._ensure_repository(task)
        except AgentrlError as error:
            reason = f"{type(error).__name__}: {error_text(error)}"
            verdict = make_verdict(task, VerdictKind.INFRA, reason)
        else:
            verdict = await self._grade_and_verify(ready, patch, name, deadline_s)
        if self._log_dir is not None:
            await keep_log(log_file(self._log_dir, task, patch), verdict)
        return _make_printable(verdict)

    async def _grade_and_verify(
        self, task: Task, patch: Patch, name: str, deadline_s: float
    ) -> Verdict:
        verdict = await self._grade_with_retries(task, patch, name, deadline_s)
        if self._verification is not None:
            verdict = await self._verification.verify(
                task, patch, verdict, name=name, deadline_s=deadline_s
            )
        return replace(verdict, signs=await asyncio.to_thread(_find_signs, task, patch))

    async def _grade_with_retries(
        self, task: Task, patch: Patch, name: str, deadline_s: float
    ) -> Verdict:
        placed = PlacedTask(task, {})
        if self._verification is not None:
            placed = await self._verification.place_real_tests(task)

        async def run(name: str) -> Verdict:
            return await self._run_tests.grade(
                placed.task, patch, name=name, deadline_s=deadline_s, files=placed.files
            )

        first = await run(name)
        spent_s = first.duration_s
        for number in range(1, self._flaky_reruns + 1):
            if not _may_be_flaky(first):
                break
            again = await run(f"{name}-{number}")
            spent_s += again.duration_s
            if again.kind is VerdictKind.SOLVED:
                reason = f"{again.reason} (run {number + 1}; before: {first.reason})"
                return replace(again, reason=reason, duration_s=spent_s)
        return replace(first, duration_s=spent_s)


TAMPERING: dict[Role, str] = {"test": "changes its tests", "setting": "configures its tests"}
"""Signs of changed paths that decide the command of a task."""


def _find_signs(task: Task, patch: Patch) -> tuple[str, ...]:
    """Return the signs of tampering in a patch, sorted; blocks."""
    changed = read_paths(patch.diff.decode("utf-8", "surrogateescape")).all
    roles = find_tampering(task, {*patch.protected_touched, *changed})
    return tuple(sorted({*find_signs(patch.diff), *(TAMPERING[role] for role in roles)}))


def _make_printable(verdict: Verdict) -> Verdict:
    """Return the verdict with the end of its log, and without what controls a terminal: tests print
    what the patch wants.
    """
    return replace(
        verdict,
        log=make_printable(verdict.log[-TAIL:]),
        reason=make_printable(shorten(verdict.reason, LINE)),
        tampered=make_printable(shorten(verdict.tampered, LINE)),
        signs=tuple(map(make_printable, verdict.signs)),
    )


def _may_be_flaky(verdict: Verdict) -> bool:
    """Return whether only pass-to-pass tests fail; a void test was reported as passed."""
    if verdict.kind is not VerdictKind.UNSOLVED or verdict.timed_out:
        return False
    fixed, kept = verdict.fail_to_pass_passed, verdict.pass_to_pass_passed
    if verdict.tests:
        fixed, kept = (
            sum(test.reported_passed for test in verdict.tests if test.test_set == name)
            for name in SETS
        )
    return fixed == verdict.fail_to_pass_total > 0 and kept < verdict.pass_to_pass_total


def log_file(run_dir: Path, task: Task, patch: Patch) -> Path:
    """Return the path of a patch's log: rows that share an id but are graded apart have a log each.

    ``task``: as it was loaded; where its repository was made, it may have lost its image.
    """
    judged = hashlib.sha256(repr(task.grading_key).encode()).hexdigest()[:12]
    return run_dir / FOLDER / task.id / f"{patch.sha256}-{judged}.txt"


async def keep_log(file: Path, verdict: Verdict) -> None:
    """Write a verdict's log to a file; one that cannot be written is given up.

    The log of an infra verdict does not replace one that is there.
    """
    if not verdict.log:
        return
    replaces = verdict.kind is not VerdictKind.INFRA
    with contextlib.suppress(OSError):  # the verdict is worth more than its log
        await asyncio.to_thread(_write, file, verdict.log, replaces=replaces)


def _write(file: Path, text: str, *, replaces: bool) -> None:
    if not replaces and file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as partial:
        partial.write_text(text, "utf-8")

"""Calibrate variants on a task's reference patch, each once per process.

A variant is used only if the reference patch fails what it must fail; what else it must pass or
fail is what the reference patch did. The seed of a variant is a secret of this process's memory: it
is in no sandbox, no run directory, no log.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from runners.tasks.contract import (
    GradingKey,
    Patch,
    Task,
    UnittestIds,
    Verdict,
    VerdictKind,
)
from runners.tasks.grading.canaries.test_texts import (
    PlacedTask,
    UnreadableTestsError,
    find_source,
    place_tests,
    read_tests,
)
from runners.tasks.grading.canaries.variants import (
    VERSION,
    LineUp,
    Variant,
    draw_negated_variant,
    draw_reworded_variant,
    is_judged_by_exit_code,
    judge_each_test,
)
from runners.tasks.patches.patch import decode_patch

VARIANTS = 4
"""Variants of each sort per task."""
Sort = Literal["negated", "reworded"]


class RunTests(Protocol):
    """Runs the tests of a task once."""

    async def grade(
        self,
        task: Task,
        patch: Patch,
        *,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes] | None = None,
    ) -> Verdict:
        """Grade in a fresh sandbox; ``files`` replace protected ones after the patch."""
        ...


class NotCalibratedError(Exception):
    """The reference patch could not be graded, and not because of the variant."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A calibrated variant: a task whose fail-to-pass tests must all fail, and whose pass-to-pass
    tests must all pass.
    """

    number: int
    placed: PlacedTask
    unseen: frozenset[str]
    """Ids of tests with new inputs."""
    changes: tuple[str, ...]
    line_up: LineUp | None = None

    def origin(self, name: str) -> str:
        """Return the id of the test of which a test is a copy, or is itself."""
        copies = self.line_up.copies if self.line_up else {}
        return next((own for own, names in copies.items() if name in names), name)


@dataclass(slots=True)
class _State:
    """Texts and canaries of a task; mutated by Calibration, under the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    texts: dict[str, bytes] | None = None
    real: PlacedTask | None = None
    """The task with its own tests."""
    canaries: dict[tuple[Sort, int], Canary | None] = field(default_factory=dict)
    lines_up: bool = True
    """No line-up of this task has failed on its reference patch."""


class Calibration:
    """Draws and keeps the canaries of every task."""

    def __init__(self, run_tests: RunTests, *, runs: int = 1, secret: str | None = None) -> None:
        """Prepare; ``runs``: gradings of the reference patch per variant, which have to agree."""
        self._run_tests = run_tests
        self._runs = runs
        self._secret = secret or secrets.token_hex(32)
        self._states: dict[GradingKey, _State] = {}

    async def place_real_tests(self, task: Task) -> PlacedTask:
        """Return the task with its own tests, placed as those of a canary are."""
        state = self._states.setdefault(task.grading_key, _State())
        async with state.lock:
            if state.real is None:
                try:
                    texts = await self._read(state, task)
                    state.real = await asyncio.to_thread(place_tests, task, texts)
                except UnreadableTestsError:  # it has no canaries either
                    state.real = PlacedTask(task, {})
        return state.real

    async def _read(self, state: _State, task: Task) -> dict[str, bytes]:
        if state.texts is None:
            state.texts = await asyncio.to_thread(read_tests, task)
        return state.texts

    async def draw(
        self, task: Task, sort: Sort, *, but: frozenset[int], name: str, deadline_s: float
    ) -> Canary | None:
        """Return a random canary whose number is not in ``but``; None if there is none.

        Raises NotCalibratedError, and UnreadableTestsError if the task's tests cannot be read.
        """
        if not task.gold_patch:
            raise UnreadableTestsError("the task has no reference patch to calibrate canaries on")
        state = self._states.setdefault(task.grading_key, _State())
        numbers = [number for number in range(VARIANTS) if number not in but]
        secrets.SystemRandom().shuffle(numbers)
        for number in numbers:
            async with state.lock:
                if (sort, number) not in state.canaries:
                    state.canaries[sort, number] = await self._calibrate(
                        state, task, sort, number, f"{name}-gold-{sort}-{number}", deadline_s
                    )
            canary = state.canaries[sort, number]
            if canary is not None:
                return canary
        return None

    async def _calibrate(
        self, state: _State, task: Task, sort: Sort, number: int, name: str, deadline_s: float
    ) -> Canary | None:
        texts = await self._read(state, task)
        seed = f"{self._secret} {VERSION} {task.id} {task.base_commit} {sort} {number}"
        if sort == "reworded":
            drawn = await asyncio.to_thread(draw_reworded_variant, task, texts, random.Random(seed))
            return await self._try(task, drawn, texts, sort, number, name, deadline_s)
        command = is_judged_by_exit_code(task)
        program = command and find_source(task) == "program"
        for lines_up in (True, False) if state.lines_up and not program else (False,):
            rng, seen = random.Random(seed), task
            if lines_up and command:
                seen = await asyncio.to_thread(judge_each_test, task, texts, rng)
            drawn = await asyncio.to_thread(
                draw_negated_variant, seen, texts, rng, lines_up=lines_up
            )
            canary = await self._try(seen, drawn, texts, sort, number, name, deadline_s)
            if canary is not None:
                return canary
            state.lines_up = state.lines_up and drawn is None
        return None

    async def _try(
        self,
        task: Task,
        variant: Variant | None,
        texts: Mapping[str, bytes],
        sort: Sort,
        number: int,
        name: str,
        deadline_s: float,
    ) -> Canary | None:
        """Return the canary of a variant; None if the reference patch shows that it is none."""
        if variant is None:
            return None
        files = {**texts, **variant.files}
        canary = await asyncio.to_thread(_make_canary, task, variant, files, number)
        gold = decode_patch(task.gold_patch, {})
        for run in range(self._runs):
            placed = canary.placed
            verdict = await self._run_tests.grade(
                placed.task, gold, name=f"{name}-{run}", deadline_s=deadline_s, files=placed.files
            )
            if verdict.kind is VerdictKind.INFRA:
                raise NotCalibratedError(f"no canary could be calibrated: {verdict.reason}")
            narrowed = _narrow(canary, sort, verdict)
            if narrowed is None or (variant.line_up and verdict.duration_s > deadline_s / 2):
                return None
            canary = narrowed
        return canary


def _make_canary(task: Task, variant: Variant, files: Mapping[str, bytes], number: int) -> Canary:
    placed = place_tests(task, files)
    if not is_judged_by_exit_code(task):
        changed = replace(
            placed.task, fail_to_pass=variant.must_fail, pass_to_pass=variant.must_pass
        )
        if isinstance(task.grading, UnittestIds):
            copies = variant.line_up.copies if variant.line_up else {}
            tests = (*task.fail_to_pass, *task.pass_to_pass)
            runs = tuple(name for test in tests for name in copies.get(test, (test,)))
            changed = replace(changed, grading=replace(task.grading, runs=runs))
        placed = replace(placed, task=changed)
    return Canary(number, placed, frozenset(variant.unseen), variant.changes, variant.line_up)


def _narrow(canary: Canary, sort: Sort, verdict: Verdict) -> Canary | None:
    """Return the canary with what the reference patch did; None if it says nothing then."""
    if verdict.timed_out:
        return None
    task = canary.placed.task
    if is_judged_by_exit_code(task):
        wanted = VerdictKind.UNSOLVED if sort == "negated" else VerdictKind.SOLVED
        return canary if verdict.kind is wanted else None
    results = {(test.test_set, test.name): test for test in verdict.tests}
    must_fail = tuple(
        name
        for name in task.fail_to_pass
        if (test := results.get(("fail_to_pass", name))) and test.result == "failed"
    )
    must_pass = tuple(
        name
        for name in task.pass_to_pass
        if (test := results.get(("pass_to_pass", name))) and test.reported_passed
    )
    # With no test that passes, it may be that nothing ran: a file that does not import, say.
    if (sort == "negated" and not must_fail) or (task.pass_to_pass and not must_pass):
        return None
    if canary.line_up and not canary.line_up.right <= {*must_pass}:
        return None
    narrowed = replace(task, fail_to_pass=must_fail, pass_to_pass=must_pass)
    return replace(canary, placed=replace(canary.placed, task=narrowed))

"""Grades evaluated tasks by other settings than trained ones."""

from __future__ import annotations

from dataclasses import dataclass

from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import Task, Verdict
from runners.tasks.rollout_result import Grader, RolloutResult


@dataclass(frozen=True, slots=True)
class SplitGrader:
    """A ``Grader`` that chooses by the split of the task."""

    train: Grader
    held_out: Grader

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the patch of a rollout; see ``Grader``."""
        return await self._of(task).grade(task, result, name=name, deadline_s=deadline_s)

    async def grade_end_state(
        self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade what an agent left in its sandbox; see ``Grader``."""
        grader = self._of(task)
        return await grader.grade_end_state(task, sandbox, name=name, deadline_s=deadline_s)

    async def grade_reference(
        self, task: Task, *, solve: bool, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the reference solution or the untouched environment; see ``Grader``."""
        grader = self._of(task)
        return await grader.grade_reference(task, solve=solve, name=name, deadline_s=deadline_s)

    def _of(self, task: Task) -> Grader:
        return self.held_out if task.split == "held_out" else self.train

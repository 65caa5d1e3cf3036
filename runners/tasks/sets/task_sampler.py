"""The contract of samplers: the tasks that a training step works on (``run.sampler``)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runners.tasks.contract import Task


class StepCount(NamedTuple):
    """The rollouts of a task in one step."""

    step: int
    graded: int
    solved: int


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """A training task, and what the steps before this one found."""

    task: Task
    graded: int
    """Its graded rollouts."""
    solved: int
    last_step: int
    """Last step that worked on it; 0: none."""
    steps: tuple[StepCount, ...] = ()
    """The same, step by step."""


@dataclass(frozen=True, slots=True)
class TaskDraw:
    """A question to a sampler."""

    seed: int
    """That of the run; a sampler that draws makes its generator of seed, step and ``spare``."""
    step: int
    """1, 2, …"""
    count: int
    """Number of tasks that are wanted."""
    tasks: tuple[TaskHistory, ...]
    """Those that may be chosen: all, or for a spare group those that the step does not have."""
    spare: int | None
    """None: the tasks of the step. Else the number of the group that replaces an untrainable one
    (``rollout.spare_groups``).
    """
    sets: tuple[str, ...] = ()
    """Of each wanted task, the set of a mixture (``Task.set_name``) whose turn it is by weight."""


class TaskSampler(Protocol):
    """Chooses the tasks of each step; ``def`` or ``async def``, in the driver.

    It has to be a function of what it is given: a run that is resumed asks again. One that raises,
    takes too long or returns something else is noted, and that step has the tasks of ``epoch``.
    """

    def __call__(self, draw: TaskDraw) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Return ``draw.count`` different ids of ``draw.tasks``, in the order of the groups."""
        ...

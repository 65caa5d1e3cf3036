"""The sampler ``run.sampler=curriculum``: tasks that the policy solves about half of the time.

A group teaches by the difference between its rollouts, so a task by the variance ``p (1 − p)`` of
its solve rate p (Foster et al. 2025, arXiv 2502.12272; Tzannetos et al. 2023, arXiv 2304.12877). p
is unknown and moves: it is estimated from evidence that fades, with a Beta prior that is fitted to
the tasks of the same kind, so a task without evidence is as good as its kind. A share of the draws
goes by the time since a task's last one, as in prioritized level replay (Jiang et al. 2021, arXiv
2010.03934): what is solved or hopeless comes back.

Invariant: the choice is a pure function of the draw.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat

from runners.tasks.contract import Task
from runners.tasks.sets.task_sampler import TaskDraw, TaskHistory

KIND_PRIOR = 8.0
"""Rollouts with the rate of all tasks that each kind begins with: one usual group."""
SPREAD = (0.1, 8.0)
"""Bounds of the prior's weight, in rollouts of a task: a group settles nearly everything where the
tasks of the kind are solved always or never, and counts as much as the kind where they are alike.
"""


class Curriculum(BaseModel):
    """Draws tasks without replacement, each with a chance that grows with its learnability."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    floor: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of the draws that go by age instead."""
    half_life: PositiveFloat = 10.0
    """Steps after which a rollout counts half."""
    sharpness: NonNegativeFloat = 4.0
    """Power of the learnability; 0: no preference."""

    def __call__(self, draw: TaskDraw) -> list[str]:
        """Return the ids, of the sets of ``draw.sets`` as long as these have tasks left."""
        chances = self.find_chances(draw)
        dice = random.Random(f"curriculum-{draw.seed}-{draw.step}-{draw.spare}")
        # Of independent waiting times with these rates the shortest are a weighted sample without
        # replacement.
        waits = {each.task.id: dice.expovariate(chances[each.task.id]) for each in draw.tasks}
        ordered = sorted((each.task for each in draw.tasks), key=lambda task: waits[task.id])
        left: list[Task] = []
        chosen: list[str] = []
        for name in draw.sets:
            left = left or list(ordered)  # fewer tasks than are wanted
            task = next((each for each in left if each.set_name == name), left[0])
            left.remove(task)
            chosen.append(task.id)
        return chosen

    def find_chances(self, draw: TaskDraw) -> dict[str, float]:
        """Return each task's chance in a single draw, > 0, by its id; they sum to 1."""
        learnability = find_learnability(draw, self.half_life)
        gains = {name: gain**self.sharpness for name, gain in learnability.items()}
        ages = {each.task.id: draw.step - each.last_step for each in draw.tasks}
        gained, aged = sum(gains.values()), sum(ages.values())
        return {
            name: (1.0 - self.floor) * gains[name] / gained + self.floor * ages[name] / aged
            for name in gains
        }


@dataclass(slots=True)
class Evidence:
    """Sums over groups of rollouts, each weighted by its age."""

    graded: float = 0.0
    solved: float = 0.0
    pairs: float = 0.0
    """Graded rollouts of groups with at least two, and of these …"""
    differing: float = 0.0
    """… the expected ``p (1 − p)``: ``s (n − s) / (n (n − 1))`` per rollout is unbiased."""

    def add(self, other: Evidence) -> None:
        """Add further groups."""
        self.graded += other.graded
        self.solved += other.solved
        self.pairs += other.pairs
        self.differing += other.differing


@dataclass(frozen=True, slots=True)
class Prior:
    """The solve rates of many tasks: Beta with mean ``rate`` and mean ``p (1 − p)`` ``signal``."""

    rate: float = 1 / 2
    signal: float = 1 / 6
    """By default those of the uniform distribution."""

    def update(self, evidence: Evidence) -> Prior:
        """Return the prior with what a kind's tasks show."""
        return Prior(
            (evidence.solved + KIND_PRIOR * self.rate) / (evidence.graded + KIND_PRIOR),
            (evidence.differing + KIND_PRIOR * self.signal) / (evidence.pairs + KIND_PRIOR),
        )

    def learnability(self, evidence: Evidence) -> float:
        """Return the expected ``4 p (1 − p)``, in (0, 1), of a task with this evidence.

        The prior's weight w follows from its moments, ``signal = rate (1 − rate) w / (w + 1)``: it
        is small where the tasks of a kind differ. For Beta(a, b) the expectation is ``4 a b / ((a +
        b) (a + b + 1))``.
        """
        spare = self.rate * (1.0 - self.rate) - self.signal
        low, high = SPREAD
        weight = min(max(self.signal / spare, low), high) if spare > 0 else high
        a = evidence.solved + weight * self.rate
        b = evidence.graded - evidence.solved + weight * (1.0 - self.rate)
        return 4.0 * a * b / ((a + b) * (a + b + 1.0))


def find_learnability(draw: TaskDraw, half_life: float) -> dict[str, float]:
    """Return the expected ``4 p (1 − p)`` of each task, in (0, 1), by its id."""
    found = {each.task.id: _weigh(each, draw.step, half_life) for each in draw.tasks}
    kinds: dict[Hashable, Evidence] = defaultdict(Evidence)
    everything = Evidence()
    for each in draw.tasks:
        kinds[_kind(each.task)].add(found[each.task.id])
        everything.add(found[each.task.id])
    overall = Prior().update(everything)
    priors = {kind: overall.update(evidence) for kind, evidence in kinds.items()}
    return {
        each.task.id: priors[_kind(each.task)].learnability(found[each.task.id])
        for each in draw.tasks
    }


def _weigh(history: TaskHistory, step: int, half_life: float) -> Evidence:
    evidence = Evidence()
    for each in history.steps:
        weight, failed = 0.5 ** ((step - each.step) / half_life), each.graded - each.solved
        evidence.add(Evidence(weight * each.graded, weight * each.solved))
        if each.graded > 1:
            differing = each.solved * failed / (each.graded - 1)
            evidence.add(Evidence(pairs=weight * each.graded, differing=weight * differing))
    return evidence


def _kind(task: Task) -> Hashable:
    return task.set_name, task.kind

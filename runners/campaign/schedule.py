"""What a run does when: which tasks a step works on, and the ids and seeds of its rollouts.

Everything is a pure function of the configuration's seed and the step, so a resumed run goes on
with exactly the rollouts that an uninterrupted one would have had.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from conf.schema import Config
from runners.rollouts.spec import RolloutSpec, derive_seed, make_spec
from runners.tasks.contract import Task


def training_batch(config: Config, tasks: Sequence[Task], step: int) -> list[RolloutSpec]:
    """Return the rollouts of training step ``step`` (1, 2, …): ``run.tasks_per_step`` groups.

    Tasks are dealt in a fresh shuffle per pass over the split; within a pass no task comes twice.
    """
    groups = enumerate(_dealt_to(config, tasks, step))
    return [spec for group, task in groups for spec in _group(config, step, group, task)]


def spare_group(config: Config, tasks: Sequence[Task], step: int, number: int) -> list[RolloutSpec]:
    """Return the group that stands in for the ``number``-th (0, 1, …) one of a step that cannot be
    trained. Its task is none of the step's as long as there are others.
    """
    dealt = {task.id for task in _dealt_to(config, tasks, step)}
    others = [task for task in tasks if task.id not in dealt] or list(tasks)
    random.Random(derive_seed(config.seed, f"spare-{step}")).shuffle(others)
    task = others[number % len(others)]
    return _group(config, step, config.run.tasks_per_step + number, task)


def evaluation_batch(config: Config, tasks: Sequence[Task], step: int) -> list[RolloutSpec]:
    """Return what evaluates the policy after ``step`` updates: a rollout per held-out task."""
    return [
        make_spec(config, "eval", step, group, 0, task)
        for group, task in enumerate(tasks[: config.run.eval_tasks])
    ]


def evaluation_due(config: Config, step: int) -> bool:
    """Whether the policy after ``step`` updates is evaluated: the first, the last, and every
    ``run.eval_every``.
    """
    if not config.run.eval_tasks:
        return False
    every = config.run.eval_every
    return step in (0, config.run.steps) or bool(every and step % every == 0)


def _dealt_to(config: Config, tasks: Sequence[Task], step: int) -> list[Task]:
    first = (step - 1) * config.run.tasks_per_step
    return [
        _dealt(config.seed, tasks, first + offset) for offset in range(config.run.tasks_per_step)
    ]


def _group(config: Config, step: int, group: int, task: Task) -> list[RolloutSpec]:
    members = range(config.run.rollouts_per_task)
    return [make_spec(config, "train", step, group, member, task) for member in members]


def _dealt(seed: int, tasks: Sequence[Task], index: int) -> Task:
    lap, place = divmod(index, len(tasks))
    order = list(range(len(tasks)))
    random.Random(derive_seed(seed, f"lap-{lap}")).shuffle(order)
    return tasks[order[place]]

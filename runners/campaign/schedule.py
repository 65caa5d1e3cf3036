"""The schedule of a run: the tasks and rollouts of each step and each evaluation.

Invariant: everything is a pure function of the configuration and the step, so a resumed run
continues with exactly the rollouts that an uninterrupted one would have had.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from conf.schema import Config
from runners.rollouts.spec import RolloutSpec, derive_seed, make_spec
from runners.tasks.contract import Task


def training_batch(config: Config, tasks: Sequence[Task], step: int) -> list[RolloutSpec]:
    """Return the rollouts of training step ``step`` (1, 2, …): ``run.tasks_per_step`` groups.

    Each pass over the split has its own order; within a pass no task comes twice.
    """
    groups = enumerate(_tasks_of_step(config, tasks, step))
    return [spec for group, task in groups for spec in _group(config, step, group, task)]


def spare_group(config: Config, tasks: Sequence[Task], step: int, number: int) -> list[RolloutSpec]:
    """Return the group that replaces the ``number``-th (0, 1, …) untrainable one of a step.

    Its task is none of the step's own, as long as there are others.
    """
    used = {task.id for task in _tasks_of_step(config, tasks, step)}
    others = [task for task in tasks if task.id not in used] or list(tasks)
    random.Random(derive_seed(config.seed, f"spare-{step}")).shuffle(others)
    task = others[number % len(others)]
    return _group(config, step, config.run.tasks_per_step + number, task)


def evaluation_batch(config: Config, tasks: Sequence[Task], step: int) -> list[RolloutSpec]:
    """Return the rollouts that evaluate the policy after ``step`` steps: the first of every
    held-out task, then the second of every task, … up to ``run.eval_attempts``.
    """
    return [
        make_spec(config, "eval", step, group, member, task)
        for member in range(config.run.eval_attempts)
        for group, task in enumerate(tasks[: config.run.eval_tasks])
    ]


def evaluation_due(config: Config, step: int) -> bool:
    """Return whether the policy after ``step`` steps is evaluated: before the first, after the last
    and after every ``run.eval_every``-th.
    """
    if not config.run.eval_tasks:
        return False
    every = config.run.eval_every
    return step in (0, config.run.steps) or bool(every and step % every == 0)


def _tasks_of_step(config: Config, tasks: Sequence[Task], step: int) -> list[Task]:
    first = (step - 1) * config.run.tasks_per_step
    return [
        _task_at(config.seed, tasks, first + offset) for offset in range(config.run.tasks_per_step)
    ]


def _group(config: Config, step: int, group: int, task: Task) -> list[RolloutSpec]:
    members = range(config.run.rollouts_per_task)
    return [make_spec(config, "train", step, group, member, task) for member in members]


def _task_at(seed: int, tasks: Sequence[Task], index: int) -> Task:
    """Return task number ``index`` in the run's endless sequence of shuffled passes."""
    lap, place = divmod(index, len(tasks))
    order = list(range(len(tasks)))
    random.Random(derive_seed(seed, f"lap-{lap}")).shuffle(order)
    return tasks[order[place]]

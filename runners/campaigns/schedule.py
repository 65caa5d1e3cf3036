"""The schedule of a run: the tasks and rollouts of each step and each evaluation.

Invariant: everything is a pure function of the configuration and the step, so a resumed run
continues with exactly the rollouts that an uninterrupted one would have had.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from conf.schema import Config
from conf.sections.training import LocalTrainerConfig
from conf.task_sets import find_weights
from runners.rollouts.contract import RolloutSpec, derive_seed, make_spec
from runners.tasks.contract import Task
from runners.tasks.sets import draws


def spare_task(config: Config, tasks: Sequence[Task], step: int, number: int) -> Task:
    """Return the task of a step's ``number``-th spare group.

    It is none of the step's own, as long as there are others.
    """
    used = {task.id for task in step_tasks(config, tasks, step)}
    name, place = _spare_set(config, step, number)
    others = [task for task in tasks if task.id not in used and task.set_name == name]
    if not others:
        others, place = [task for task in tasks if task.id not in used] or list(tasks), number
    random.Random(derive_seed(config.seed, f"spare-{step}")).shuffle(others)
    return others[place % len(others)]


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


def step_tasks(config: Config, tasks: Sequence[Task], step: int) -> list[Task]:
    """Return the tasks of a step: a window of the run's endless sequence of draws."""
    weights = find_weights(config)
    names = list(weights)
    sets = {name: [task for task in tasks if task.set_name == name] for name in names}
    sequence = draws(tuple(weights.values()))
    first = (step - 1) * config.run.tasks_per_step
    found = []
    for number in range(first, first + config.run.tasks_per_step):
        index, place = sequence[number]
        found.append(_task_at(config.seed, names[index], sets[names[index]], place))
    return found


def _spare_set(config: Config, step: int, number: int) -> tuple[str, int]:
    """Return the name of the set of a spare group, and how many spare groups of the step are of it
    before; chosen by weight, so that the sets keep their shares on average.
    """
    weights = find_weights(config)
    dice = random.Random(derive_seed(config.seed, f"spare-sets-{step}"))
    names = dice.choices(list(weights), list(weights.values()), k=number + 1)
    return names[number], names[:number].count(names[number])


def make_group(config: Config, step: int, group: int, task: Task) -> list[RolloutSpec]:
    """Return the rollouts of one group of a training step."""
    members = range(config.run.rollouts_per_task)
    return [make_spec(config, "train", step, group, member, task) for member in members]


def _task_at(seed: int, name: str, tasks: Sequence[Task], number: int) -> Task:
    """Return task ``number`` in the endless sequence of a set's shuffled passes (epochs)."""
    lap, place = divmod(number, len(tasks))
    label = f"lap-{lap}-{name}" if name else f"lap-{lap}"
    return tasks[_order(derive_seed(seed, label), len(tasks))[place]]


@lru_cache(maxsize=16)
def _order(seed: int, length: int) -> list[int]:
    """Return the order of one pass; kept, since every task of a step needs it."""
    order = list(range(length))
    random.Random(seed).shuffle(order)
    return order


def count_supervised(config: Config) -> int:
    """Return the number of a run's first steps that train on examples."""
    return config.trainer.sft.steps if isinstance(config.trainer, LocalTrainerConfig) else 0

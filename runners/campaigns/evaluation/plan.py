"""Plan the rollouts of an evaluation: a pure function of benchmark and configuration.

A rollout's id and seed depend on the place of its task in the whole benchmark, so that an
evaluation resumed with more tasks or more attempts keeps all its rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.task import TaskFileConfig
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.records import ids
from runners.rollouts.contract import RolloutSpec, make_spec
from runners.tasks.contract import Task
from runners.tasks.sets import read_dataset

SPLIT = "eval"


@dataclass(frozen=True, slots=True)
class Instance:
    """A task that is measured, and its place."""

    place: int
    """Index in the whole benchmark, from 0."""
    task: Task


@dataclass(frozen=True, slots=True)
class Selection:
    """The tasks of an evaluation."""

    instances: tuple[Instance, ...]
    set_aside: tuple[str, ...] = ()
    """Ids of tasks that ``task.exclude`` leaves out."""


def select_tasks(benchmark: Benchmark, config: Config) -> Selection:
    """Return the tasks that the section ``eval`` selects; blocks while they are generated or read.

    Raises ConfigError if there are none.
    """
    wanted, tasks = config.eval, benchmark.tasks(config)
    matching = [
        Instance(place, task)
        for place, task in enumerate(tasks)
        if fnmatchcase(task.id, wanted.ids)
    ]
    end = None if wanted.tasks is None else wanted.offset + wanted.tasks
    chosen = matching[wanted.offset : end]
    if not chosen:
        raise ConfigError(
            f"eval.ids={wanted.ids} eval.offset={wanted.offset} select no task ("
            f"{len(matching)} of {len(tasks)} tasks of {benchmark.name} match eval.ids): "
            "change one of them"
        )
    return Selection(tuple(chosen), _find_set_aside(config))


def _find_set_aside(config: Config) -> tuple[str, ...]:
    task = config.task
    if not isinstance(task, TaskFileConfig) or task.exclude is None or task.path is None:
        return ()
    return tuple(sorted(read_dataset(task, task.path).aside))


def plan_rollouts(instances: Sequence[Instance], config: Config) -> list[RolloutSpec]:
    """Return the planned rollouts: the first of every task, then the second of every task, …."""
    return [
        make_spec(config, SPLIT, 0, instance.place, sample, instance.task)
        for sample in range(config.eval.attempts_per_task)
        for instance in instances
    ]


def rollout_id(place: int, sample: int) -> str:
    """Return the id of the rollout that is attempt ``sample`` at the task in that place."""
    return ids.rollout_id(SPLIT, 0, place, sample)

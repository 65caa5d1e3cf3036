"""Plan the rollouts of an evaluation: a pure function of benchmark and configuration.

A rollout's id and seed depend on the place of its task in the whole benchmark, so that an
evaluation resumed with more tasks or more attempts keeps all its rollouts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conf.errors import ConfigError
from conf.schema import Config
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.records import ids
from runners.rollouts.contract import RolloutSpec, make_spec
from runners.tasks.contract import Task

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
    """Ids of selected tasks that are left out because they are unfit."""

    def without(self, unfit: Collection[str]) -> Selection:
        """Return the selection with the tasks of these ids set aside."""
        return Selection(
            tuple(i for i in self.instances if i.task.id not in unfit),
            tuple(i.task.id for i in self.instances if i.task.id in unfit),
        )


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
    return Selection(tuple(chosen))


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

"""Which rollouts an evaluation has: a pure function of benchmark and configuration.

A rollout's id and seed depend on its task's place in the whole benchmark, so a resumed evaluation
that got more tasks or more attempts keeps everything it has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conf.errors import ConfigError
from conf.schema import Config
from runners.evaluation.benchmarks import Benchmark
from runners.rollouts.spec import RolloutSpec, make_spec
from runners.tasks.contract import Task
from runners.trajectory import ids

SPLIT = "eval"


@dataclass(frozen=True, slots=True)
class Instance:
    """A task that is measured."""

    place: int
    """In the whole benchmark, from 0."""
    task: Task


@dataclass(frozen=True, slots=True)
class Selection:
    """The tasks that an evaluation is about."""

    instances: tuple[Instance, ...]
    set_aside: tuple[str, ...] = ()
    """Ids of chosen tasks that are left out."""

    def without(self, unfit: Collection[str]) -> Selection:
        """Return it with the tasks of these ids set aside."""
        return Selection(
            tuple(i for i in self.instances if i.task.id not in unfit),
            tuple(i.task.id for i in self.instances if i.task.id in unfit),
        )


def select(benchmark: Benchmark, config: Config) -> Selection:
    """Return the tasks that ``eval`` asks for; blocks while they are made or read.

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
            [
                f"eval.ids={wanted.ids} eval.offset={wanted.offset} leave no task: of the "
                f"{len(tasks)} of {benchmark.name} {len(matching)} match; widen them"
            ]
        )
    return Selection(tuple(chosen))


def rollouts(instances: Sequence[Instance], config: Config) -> list[RolloutSpec]:
    """Return the rollouts, every task's first before any's second."""
    return [
        make_spec(config, SPLIT, 0, instance.place, sample, instance.task)
        for sample in range(config.eval.attempts_per_task)
        for instance in instances
    ]


def rollout_id(place: int, sample: int) -> str:
    """Return the id of the rollout that is attempt ``sample`` at the task in that place."""
    return ids.rollout_id(SPLIT, 0, place, sample)

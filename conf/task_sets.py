"""The sets of tasks that a configuration names: where each is, and how it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conf.schema import Config
from conf.sections.task import MixtureConfig, TaskFileConfig


@dataclass(frozen=True, slots=True)
class TaskSet:
    """A set of tasks in a file or on the hub."""

    key: str
    """Its place in the configuration: ``task``, ``eval_task.sets[0]``, …"""
    config: TaskFileConfig
    name: str = ""
    """Its name in a mixture; "" for the only one."""
    weight: float = 1.0

    @property
    def evaluated(self) -> bool:
        """True if it is for evaluation only."""
        return self.key.startswith("eval_task")


def list_sets(config: Config) -> list[TaskSet]:
    """Return the sets that are read, of ``task`` before ``eval_task``; generated tasks are none."""
    return [
        found
        for key, section in (("task", config.task), ("eval_task", config.eval_task))
        for found in _list_section(key, section)
    ]


def find_weights(config: Config) -> dict[str, float]:
    """Return the weights of the training sets by their names: {"": 1.0} unless it is a mixture."""
    sets = [each for each in list_sets(config) if not each.evaluated]
    return {each.name: each.weight for each in sets} or {"": 1.0}


def name_sets(config: Config) -> list[str]:
    """Return the names of the sets of ``task=mixture``."""
    return [name for name in find_weights(config) if name]


def _list_section(key: str, section: object) -> Iterator[TaskSet]:
    if isinstance(section, TaskFileConfig):
        yield TaskSet(key, section)
    if isinstance(section, MixtureConfig):
        for number, each in enumerate(section.sets):
            file = TaskFileConfig(
                kind="jsonl",
                path=each.path,
                format=each.format,
                repositories=each.repositories,
                exclude=each.exclude,
                grader=section.grader,
                flaky_reruns=section.flaky_reruns,
                canaries=section.canaries,
            )
            yield TaskSet(f"{key}.sets[{number}]", file, each.label, each.weight)

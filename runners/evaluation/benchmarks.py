"""The benchmarks: what ``agentrl eval`` can measure. A new one is an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.schema import Config
from conf.suggestions import suggest
from runners.tasks.contract import Task
from runners.tasks.datasets import load_tasks


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A set of tasks with a name."""

    name: str
    task: str
    """The choice ``task=…`` whose tasks it has."""
    load: Callable[[Config], list[Task]]
    """Its tasks, always in the same order; blocks while they are made or read."""
    parts: str
    """What a task's ``kind`` says here: the report breaks the results down by it."""

    def tasks(self, config: Config) -> list[Task]:
        """Return what ``load`` does, for a configuration that is about them; raises ConfigError."""
        if config.task.kind != self.task:
            raise ConfigError(
                [
                    f"task={config.task.kind} is not what the benchmark {self.name} measures: "
                    f"drop the override (it is task={self.task})"
                ]
            )
        return self.load(config)


def _held_out(config: Config) -> list[Task]:
    return [task for task in load_tasks(config) if task.split == "held_out"]


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("bugfix", task="bugfix", load=_held_out, parts="kind of bug"),
        Benchmark("swebench", task="swebench", load=_held_out, parts="repository"),
    )
}


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name; raises ConfigError."""
    if name not in BENCHMARKS:
        hint = suggest(name, BENCHMARKS, "did you mean {}? ")
        known = ", ".join(BENCHMARKS)
        raise ConfigError([f"{name} is not a benchmark: {hint}(benchmarks: {known})"])
    return BENCHMARKS[name]

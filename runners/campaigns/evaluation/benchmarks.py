"""The benchmarks of ``agentrl eval``. A new one is an entry of ``BENCHMARKS``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.schema import Config
from conf.suggestions import suggest
from runners.observe.live import TASK_CHECK
from runners.tasks.contract import Task
from runners.tasks.sets import load_tasks

NO_TRAINING = ("run.steps=0", "run.eval_tasks=0")
"""Overrides that switch off the parts of the configuration that only a campaign has."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named set of tasks."""

    name: str
    task: str | None
    """The choice of the group ``task`` from which its tasks come; None: any."""
    load: Callable[[Config], list[Task]]
    """Loads its tasks, always in the same order; blocks while they are generated or read."""
    parts: str
    """Meaning of a task's ``kind`` in this benchmark; the report groups the results by it."""
    settings: tuple[str, ...] = ()
    """Further lines of its configuration, of what a training does otherwise."""

    def overrides(self, lines: Sequence[str]) -> list[str]:
        """Return the lines of an evaluation's configuration; ``lines`` come last."""
        chosen = [f"task={self.task}"] if self.task else []
        return [*chosen, *NO_TRAINING, *self.settings, *lines]

    def tasks(self, config: Config) -> list[Task]:
        """Return the tasks; raises ConfigError if ``config`` has another choice of ``task``."""
        if self.task not in (None, config.task.kind):
            raise ConfigError(
                f"task={config.task.kind} is not what the benchmark {self.name} measures: "
                f"drop the override (it is task={self.task})"
            )
        return self.load(config)


def _held_out(config: Config) -> list[Task]:
    return [task for task in load_tasks(config) if task.split == "held_out"]


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("bugfix", task="bugfix", load=_held_out, parts="kind of bug"),
        Benchmark(
            "swebench",
            task="swebench",
            load=_held_out,
            parts="repository",
            settings=("task.canaries=0",),  # it takes as long as the benchmark's own
        ),
    )
}


TASKS = Benchmark(
    TASK_CHECK,
    task=None,
    load=load_tasks,
    parts="repository",
    settings=("eval.attempts_per_task=3",),
)
"""All tasks of a training, as ``agentrl tasks check`` grades them: each patch three times."""


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name; raises ConfigError."""
    if name not in BENCHMARKS:
        hint = suggest(name, BENCHMARKS, "did you mean {}? ")
        known = ", ".join(BENCHMARKS)
        raise ConfigError(f"{name} is not a benchmark: {hint}(benchmarks: {known})")
    return BENCHMARKS[name]

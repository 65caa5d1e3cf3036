"""The groups of training steps, of the tasks that the configured sampler chooses.

Invariant: a step keeps its tasks. They are a function of seed, step and what earlier steps left in
the store, and a group that a stopped run had begun keeps its task whatever the sampler says; so a
resumed run continues as an uninterrupted one would have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from conf.schema import Config
from conf.sections.plugin import PluginConfig
from runners.campaigns.schedule import make_group, spare_task, step_tasks
from runners.records.store import RunStore
from runners.rollouts.contract import RolloutSpec
from runners.system.plugins import PluginFailedError, call_plugin, load_plugin
from runners.tasks.contract import Task
from runners.tasks.sets import Curriculum, StepCount, TaskDraw, TaskHistory, TaskSampler

SAMPLERS: dict[str, TaskSampler] = {"curriculum": Curriculum()}
"""Samplers of choices of ``run.sampler`` that look at what earlier steps found."""
CHOOSE_S = 60.0
"""Time of one call."""


class StepSampler:
    """Makes the rollouts of a step, of the tasks that the configured sampler chooses."""

    def __init__(
        self,
        config: Config,
        store: RunStore,
        tasks: Sequence[Task],
        report: Callable[[int, PluginFailedError], None],
    ) -> None:
        """Load a plug-in; raises PluginError. ``report`` is told of each step that it failed."""
        self._config = config
        self._store = store
        self._tasks = {task.id: task for task in tasks}
        self._report = report
        self._sampler: TaskSampler | None = None
        """None: every task once per pass, which needs no history."""
        if isinstance(config.run.sampler, PluginConfig):
            self._sampler = load_plugin(config.run.sampler, TaskSampler, "run.sampler")
        elif config.run.sampler != "epoch":
            self._sampler = SAMPLERS[config.run.sampler]

    async def batch(self, step: int) -> list[RolloutSpec]:
        """Return the rollouts of a step: ``run.tasks_per_step`` groups."""
        tasks = list(self._tasks.values())
        chosen = step_tasks(self._config, tasks, step)
        if self._sampler is not None:
            chosen = await self._ask(step, tasks, chosen, None)
            kept = self._kept(step)
            chosen = [kept.get(group, task) for group, task in enumerate(chosen)]
        return [
            spec
            for group, task in enumerate(chosen)
            for spec in make_group(self._config, step, group, task)
        ]

    async def spare(self, step: int, number: int, used: Collection[str]) -> list[RolloutSpec]:
        """Return the group that replaces the ``number``-th (0, 1, …) untrainable one of a step,
        which has the tasks ``used``.
        """
        tasks = list(self._tasks.values())
        group = self._config.run.tasks_per_step + number
        task = spare_task(self._config, tasks, step, number)
        if self._sampler is not None:
            others = [each for each in tasks if each.id not in used] or tasks
            (task,) = await self._ask(step, others, [task], number)
            task = self._kept(step).get(group, task)
        return make_group(self._config, step, group, task)

    def group(self, step: int, number: int, task_id: str) -> list[RolloutSpec]:
        """Return a group of a step that was dealt before, of the task that it was given."""
        return make_group(self._config, step, number, self._tasks[task_id])

    def _kept(self, step: int) -> dict[int, Task]:
        """Return the tasks of the groups of a step that have a rollout already."""
        rows = self._store.query(
            "SELECT DISTINCT group_index, task_id FROM rollout "
            "WHERE counts AND split = 'train' AND step = ?",
            (step,),
        )
        return {group: self._tasks[name] for group, name in rows if name in self._tasks}

    async def _ask(
        self, step: int, tasks: Sequence[Task], otherwise: list[Task], spare: int | None
    ) -> list[Task]:
        """Return the sampler's choice, as many tasks as ``otherwise`` has; if it fails, those."""
        assert self._sampler is not None
        histories = self._find_histories(step, tasks)
        sets = tuple(task.set_name for task in otherwise)
        draw = TaskDraw(self._config.seed, step, len(otherwise), histories, spare, sets)
        try:
            found = await call_plugin("run.sampler", self._sampler, draw, deadline_s=CHOOSE_S)
            return [self._tasks[name] for name in check_choice(draw, found)]
        except PluginFailedError as error:
            self._report(step, error)
            return otherwise

    def _find_histories(self, step: int, tasks: Sequence[Task]) -> tuple[TaskHistory, ...]:
        known: dict[str, list[StepCount]] = defaultdict(list)
        for name, *counts in self._store.task_counts(before=step):
            known[name].append(StepCount(*counts))
        return tuple(make_history(task, known.get(task.id, ())) for task in tasks)


def make_history(task: Task, steps: Sequence[StepCount]) -> TaskHistory:
    """Return a task with what the steps that worked on it found, in their order."""
    return TaskHistory(
        task,
        graded=sum(each.graded for each in steps),
        solved=sum(each.solved for each in steps),
        last_step=steps[-1].step if steps else 0,
        steps=tuple(steps),
    )


def check_choice(draw: TaskDraw, found: object) -> list[str]:
    """Return the ids that a sampler chose; raises PluginFailedError unless they are as wanted.

    A task comes twice only if there are too few.
    """
    known = {each.task.id for each in draw.tasks}
    ids = [each for each in found if isinstance(each, str)] if isinstance(found, Sequence) else []
    different = len(set(ids) & known)
    if not (len(ids) == draw.count and {*ids} <= known and different == min(len(ids), len(known))):
        raise PluginFailedError(
            f"run.sampler returned {found!r:.200}, not {draw.count} different ids of draw.tasks"
        )
    return ids

"""Run the groups that the schedule admits, each as soon as there is a place for its rollouts.

Invariant: rollouts begin in the order of admission, and a group that has begun is never given up
for being slow; only one without signal is replaced, by the next deal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from conf.schema import Config
from runners.campaigns.group_runner import GroupRunner
from runners.campaigns.overlap.events import Admit, ScheduleError
from runners.campaigns.overlap.run_schedule import RunSchedule
from runners.campaigns.sampler import StepSampler
from runners.records.record import RolloutRecord
from runners.rollouts.contract import RolloutSpec
from runners.services.driver import Interrupted
from runners.training.advantages import StepGroups

REPLAY_POLL_S = 0.02
"""Time between looks at whether a replayed group may begin."""


class GroupProducer:
    """The groups in flight; its tasks end with the task group that ``open`` is given."""

    def __init__(
        self,
        config: Config,
        schedule: RunSchedule,
        sampler: StepSampler,
        runner: GroupRunner,
        draining: asyncio.Event,
    ) -> None:
        self._config = config
        self._schedule = schedule
        self._sampler = sampler
        self._runner = runner
        self._draining = draining
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._admitting = asyncio.Lock()
        """Held from a change of the state to its row: the log has admissions in their order."""

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Begin again the groups that a stopped run had admitted, in their order."""
        self._tasks = tasks
        for group in sorted(self._schedule.state.pending):
            step, number = self._schedule.place_of(group)
            specs = self._sampler.group(step, number, self._schedule.tasks[group])
            if not self._runner.has_final(specs):
                self._schedule.state.forget_start(group)
            self._begin(group, specs)

    async def admit(self) -> None:
        """Begin the groups that may run now."""
        async with self._admitting:
            for event in self._schedule.state.admit():
                self._log_and_begin(event, await self._deal(event.group))

    async def wait_until_idle(self) -> None:
        """Return when no group runs."""
        while self._running:
            await asyncio.wait(self._running)

    async def check_stop(self) -> None:
        """Raise Interrupted if the run stops, once no group runs any more."""
        if self._draining.is_set():
            await self.wait_until_idle()
            raise Interrupted

    async def wait_for_change(self) -> None:
        """Return when a group has ended; raises Interrupted if the run stops."""
        self._changed.clear()
        await self.check_stop()
        if not self._running:
            raise ScheduleError("no group runs, and those that are ready make no batch")
        await self._changed.wait()

    async def _deal(self, group: int) -> list[RolloutSpec]:
        """Return the rollouts of a group; the tasks of its step are chosen and logged once, since a
        sampler that is asked again knows more and may choose others.
        """
        step, number = self._schedule.place_of(group)
        if step not in self._schedule.deals:
            tasks = self._schedule.find_recorded_deal(step)
            if tasks is None:
                specs = await self._sampler.batch(step)
                tasks = [spec.task.id for spec in specs if spec.member == 0]
            self._schedule.log_deal(step, tasks)
        return self._sampler.group(step, number, self._schedule.deals[step][number])

    def _log_and_begin(self, event: Admit, specs: Sequence[RolloutSpec]) -> None:
        self._schedule.log(event, task=specs[0].task.id)
        self._begin(event.group, specs)

    def _begin(self, group: int, specs: Sequence[RolloutSpec]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(self._run(group, specs), name=f"group-{group}")
        self._running.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()

    async def _run(self, group: int, specs: Sequence[RolloutSpec]) -> None:
        while not self._schedule.may_begin(group):
            await asyncio.sleep(REPLAY_POLL_S)
        records = await self._runner.run_group(specs, partial(self._note_start, group))
        if records is not None:
            await self._finish(group, records)

    def _note_start(self, group: int) -> None:
        """Log the weights of a group's first rollout, before it begins."""
        state = self._schedule.state
        if state.pending[group] is None:
            self._schedule.log(state.start(group, state.version))

    async def _finish(self, group: int, records: Sequence[RolloutRecord]) -> None:
        """Let a complete group be trained, or replace it."""
        state = self._schedule.state
        untrainable = bool(StepGroups(self._config, records).untrainable)
        if not self._draining.is_set():
            async with self._admitting:
                if self._schedule.is_replaced(group, untrainable=untrainable):
                    # Dealt first: no batch may come between a replacement and its row.
                    specs = await self._deal(state.admitted)
                    self._log_and_begin(state.replace(group), specs)
                    return
        self._schedule.log(state.ready(group))

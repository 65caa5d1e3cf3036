"""Gather the batches of ``run.overlap=stream``: groups go on while slime trains and loads weights.

slime asks for batch k when batch k − 1 is handed over, and loads the weights of k − 1 once both are
done. So the schedule counts a batch as trained when the next one is asked for: its version is that
of the engines or one newer, and its staleness is one less than ``run.staleness``, which therefore
bounds the age of each token (``find_limits``). Otherwise it is the schedule of ``trainer=local``:
no group is left out for being slow, none is older than ``run.staleness``, and what is decided is in
the store before it is acted on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from conf.schema import Config
from runners.campaigns.group_runner import GroupRunner
from runners.campaigns.overlap.events import Batch
from runners.campaigns.overlap.producer import GroupProducer
from runners.campaigns.overlap.run_schedule import RunSchedule
from runners.campaigns.sampler import StepSampler
from runners.campaigns.slime.batches import GatheredBatch, Group
from runners.records.store import RunStore
from runners.system.concurrency import task_group
from runners.training.advantages import StepGroups

T = TypeVar("T")


class StreamBatches:
    """The groups of a job in flight, from its first batch to its last."""

    def __init__(
        self, config: Config, store: RunStore, sampler: StepSampler, runner: GroupRunner
    ) -> None:
        """Read the schedule, which ends with the last batch that is trained; raises ScheduleError
        if it contradicts itself.
        """
        self._config = config
        self._store = store
        self._schedule = RunSchedule(config, store)
        self._producer = GroupProducer(
            config, self._schedule, sampler, runner, draining=asyncio.Event()
        )
        self._running: asyncio.Task[None] | None = None

    async def gather(self, step: int) -> GatheredBatch:
        """See ``Batches.gather``; raises what ended a rollout, too: the breaker, a StoreError."""
        state = self._schedule.state
        if state.training is not None:
            self._schedule.log(state.updated(state.training.number))
        if self._running is None:
            opened = asyncio.Event()
            self._running = asyncio.create_task(self._run_groups(opened), name="agentrl-groups")
            await self._until(opened.wait())
        elif self._running.done():
            self._running.result()  # it failed between two batches
        await self._producer.admit()
        batch = await self._until(self._find_batch())
        assert self._schedule.step_of(batch) == step, "slime asks for one batch after the other"
        self._schedule.log_batch(batch)
        return self._read(batch)

    async def close(self) -> None:
        """See ``Batches.close``: each rollout is stored as cancelled."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run_groups(self, opened: asyncio.Event) -> None:
        """Run groups until it is cancelled, or one of them fails."""
        async with task_group() as tasks:
            self._producer.open(tasks)
            opened.set()
            await asyncio.Event().wait()

    async def _find_batch(self) -> Batch:
        # No await between the look and the wait: a group that ends there would not be noticed.
        while (batch := self._schedule.next_batch()) is None:
            await self._producer.wait_for_change()
        return batch

    async def _until(self, change: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``change``; raises what ended the groups."""
        assert self._running is not None
        waiting = asyncio.create_task(change)
        try:
            await asyncio.wait([waiting, self._running], return_when=asyncio.FIRST_COMPLETED)
            if self._running.done() or self._running.cancelling():
                await self._running
            return await waiting
        finally:
            waiting.cancel()

    def _read(self, batch: Batch) -> GatheredBatch:
        """Return the rollouts of a batch, and of the groups that were replaced meanwhile."""
        groups = self._read_groups(batch.groups)
        members = [record for group in groups for record in group]
        return GatheredBatch(
            self._schedule.step_of(batch),
            groups,
            self._read_groups(self._schedule.left_out),
            frozenset(StepGroups(self._config, members).replaceable),
            tuple(age + 1 for age in batch.staleness) if batch.number > 1 else batch.staleness,
        )

    def _read_groups(self, groups: Iterable[int]) -> list[Group]:
        """Return the rollouts of each group; those of a step are read at once."""
        places = [self._schedule.place_of(group) for group in groups]
        found: dict[tuple[int, int], Group] = {place: [] for place in places}
        for step in sorted({step for step, _ in places}):
            for record in self._store.rollouts(step=step, split="train", counts=True):
                if (step, record.group) in found:
                    found[step, record.group].append(record)
        return list(found.values())

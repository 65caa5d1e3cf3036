"""Train the batches of an asynchronous campaign while rollouts run (arXiv 2505.24298, 2509.18521).

One loop: gather a batch, train it, make it durable, update the rollouts' weights. Invariant: a
batch is in the log before it is trained, its checkpoint and row exist before the weights change,
and the change is in the log before the next batch. So a run that is killed at any instant trains
every batch once, in the composition that the log names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from conf.schema import Config
from runners.campaigns.overlap.events import Batch, ScheduleError
from runners.campaigns.overlap.producer import REPLAY_POLL_S, GroupProducer
from runners.campaigns.overlap.recorded import RecordedSchedule
from runners.campaigns.overlap.run_schedule import RunSchedule
from runners.campaigns.schedule import evaluation_due
from runners.campaigns.step_training import StepTraining
from runners.records.checkpoints import CHECKPOINTS, Checkpoint, CheckpointError, directory_name
from runners.records.store import RunStore
from runners.services.driver import Interrupted
from runners.system.concurrency import task_group
from runners.training.advantages import StepGroups


class OverlappedSteps:
    """The steps of a run whose rollouts and training overlap."""

    def __init__(
        self,
        config: Config,
        store: RunStore,
        *,
        schedule: RunSchedule,
        producer: GroupProducer,
        training: StepTraining,
        served: int,
        load: Callable[[Checkpoint], Awaitable[None]],
        show_rollouts: Callable[[], None],
        after_step: Callable[[int, dict[str, Any]], None],
        evaluate: Callable[[int], Awaitable[object]],
        count_planned: Callable[[], Awaitable[dict[int, int]]],
    ) -> None:
        """Prepare to run. ``served``: version of the engine's weights; ``load`` gives it others;
        ``show_rollouts`` is called after groups were admitted; ``after_step`` is told of each step
        that is durable; ``evaluate`` runs an evaluation unless it was made; ``count_planned``
        counts what a replay has sampled, by version.
        """
        self._config = config
        self._store = store
        self._schedule = schedule
        self._producer = producer
        self._training = training
        self._served = served
        self._load = load
        self._show_rollouts = show_rollouts
        self._after_step = after_step
        self._evaluate = evaluate
        self._count_planned = count_planned
        self._tasks: asyncio.TaskGroup | None = None
        self._evaluation: asyncio.Task[bool] | None = None
        """Of the weights that the engine has; they change when it has ended."""
        self._shown = -1
        """Groups that were admitted when rollouts were shown last."""
        self._gathered_at = self._ended_at = time.monotonic()

    async def run(self, saved: Checkpoint | None) -> None:
        """Run to the last step, from the newest checkpoint; raises Interrupted."""
        async with task_group() as tasks:
            self._tasks = tasks
            try:
                await self._run(saved, tasks)
            except Interrupted:
                await self._end_evaluation()  # its rollouts in flight end as those of groups do
                raise

    async def _run(self, saved: Checkpoint | None, tasks: asyncio.TaskGroup) -> None:
        state = self._schedule.state
        self._producer.open(tasks)
        if saved is not None and saved.step == self._schedule.version + 1:
            # The run was stopped between the checkpoint and the update.
            await self._update(saved)
        else:
            self._begin_evaluation(self._schedule.version)
        while not state.finished:
            await self._producer.check_stop()
            await self._admit()
            batch = state.training or await self._gather()
            await self._admit()
            await self._update(await self._train(batch))
        await self._end_evaluation()

    def _begin_evaluation(self, step: int) -> None:
        """Evaluate the engine's weights beside rollouts and training, until ``_end_evaluation``."""

        async def evaluate() -> bool:
            with suppress(Interrupted):
                await self._evaluate(step)
                return True
            return False

        if evaluation_due(self._config, step):
            assert self._tasks is not None
            self._evaluation = self._tasks.create_task(evaluate(), name=f"evaluation-{step}")

    async def _end_evaluation(self) -> None:
        """Return when no evaluation runs; raises what it raised, Interrupted if a stop cut it."""
        running, self._evaluation = self._evaluation, None
        if running is not None and not await running:
            await self._producer.wait_until_idle()
            raise Interrupted

    async def _admit(self) -> None:
        """Begin the groups that may run now."""
        await self._producer.admit()
        admitted = self._schedule.state.admitted
        if admitted != self._shown:  # to count them, the whole schedule is read
            self._shown = admitted
            self._show_rollouts()

    async def _gather(self) -> Batch:
        """Return the next batch, once its groups are ready and nobody would be late for it."""
        while (batch := self._schedule.next_batch()) is None:
            await self._producer.wait_for_change()
        self._schedule.log_batch(batch)
        return batch

    async def _train(self, batch: Batch) -> Checkpoint:
        """Train a batch and make it durable; return its checkpoint."""
        step, groups = self._schedule.step_of(batch), StepGroups(self._config)
        for group in sorted((*batch.groups, *self._schedule.left_out)):
            dealt, number = self._schedule.place_of(group)
            records = self._store.rollouts(step=dealt, split="train", counts=True)
            groups.add(record for record in records if record.group == number)
        now = time.monotonic()
        gathered_s, self._gathered_at = now - self._gathered_at, now
        metrics = await self._training.train(step, groups, gathered_s)
        # Of the weights before: with a newer checkpoint a resumed run would not have them any more.
        await self._end_evaluation()
        now = time.monotonic()
        metrics["time/step_s"], self._ended_at = now - self._ended_at, now
        saved = await self._training.save(step, metrics)
        self._after_step(step, metrics)
        return saved

    async def _update(self, saved: Checkpoint) -> None:
        """Let rollouts go on with a checkpoint's weights; begin their evaluation if it is due."""
        state = self._schedule.state
        while not state.may_update:
            await self._producer.wait_for_change()
        if self._schedule.recorded is not None:
            await self._await_recorded(self._schedule.recorded)
        if self._served != saved.step:
            await self._load(saved)
            self._served = saved.step
        assert state.training is not None
        self._schedule.log(state.updated(state.training.number))
        self._begin_evaluation(saved.step)

    async def _await_recorded(self, recorded: RecordedSchedule) -> None:
        """Return once everything is sampled that the recorded run sampled before this update;
        raises ScheduleError if that does not come.
        """
        version = self._schedule.version
        wanted = {v: n for v, n in recorded.tokens.items() if v <= version}
        groups = {g for g, v in recorded.starts.items() if v <= self._schedule.state.version}
        ends = time.monotonic() + self._config.rollout.deadlines.guard_s
        while True:
            sampled, waiting = await self._count_planned(), self._schedule.not_begun(groups)
            missing = {v: n - sampled.get(v, 0) for v, n in wanted.items()}
            if not waiting and all(number <= 0 for number in missing.values()):
                return
            if time.monotonic() > ends:
                raise ScheduleError(
                    f"the replay of {recorded.run_dir} differs before update {version + 1}: "
                    f"groups {sorted(waiting)} have not begun, tokens by version are missing: "
                    f"{missing}; if rollouts wait for a place, raise rollout.concurrency"
                )
            await asyncio.sleep(REPLAY_POLL_S)


def find_served(
    config: Config, store: RunStore, saved: Checkpoint | None
) -> tuple[int, Checkpoint | None]:
    """Return the version of the weights that the engine of a run begins with, and its checkpoint.

    It is the newest, but in ``step`` the one before while rollouts of the next batch go on with
    that. None: the starting policy's. Raises ScheduleError and CheckpointError.
    """
    newest = 0 if saved is None else saved.step
    if config.run.overlap != "step" or not store.schedule():
        return newest, saved
    version = RunSchedule(config, store).version
    if version not in (newest - 1, newest):
        raise ScheduleError(
            f"the schedule of {store.run_dir} ends with update {version}, and its newest "
            f"checkpoint is that of step {newest}: restore the run directory as a whole"
        )
    if version == newest:
        return newest, saved
    path = store.run_dir / CHECKPOINTS / directory_name(version)
    if version and not path.is_dir():
        raise CheckpointError(
            f"rollouts of step {newest + 1} go on with the weights of step {version}, and {path} "
            "is gone: copy it back"
        )
    return version, Checkpoint(path, version) if version else None

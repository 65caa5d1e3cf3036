"""Runs the rollouts of steps and evaluations, and spare groups in place of those without signal.

Invariant: which groups a step has does not depend on which are ready first. Spare groups begin in
the order of their numbers, as soon as a group is known to be untrainable, and every group that has
begun is waited for and, if it can be, trained; none is left out for being slow, nor for being one
more than was needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from conf.schema import Config
from runners.campaigns.sampler import StepSampler
from runners.observe.live import Progress
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.rollouts.contract import RolloutSpec
from runners.rollouts.pool import Pool
from runners.services.driver import Interrupted
from runners.system.concurrency import task_group
from runners.training.advantages import StepGroups


class GroupRunner:
    """Runs batches of rollouts and whole steps; what the store has is not run again."""

    def __init__(
        self,
        config: Config,
        store: RunStore,
        pool: Pool,
        sampler: StepSampler,
        *,
        progress: Progress,
        draining: asyncio.Event,
    ) -> None:
        self._config = config
        self._store = store
        self._pool = pool
        self._sampler = sampler
        self._progress = progress
        self._draining = draining

    async def run_batch(self, specs: Sequence[RolloutSpec]) -> list[RolloutRecord]:
        """Return the final record of each spec, in order; raises Interrupted when asked to stop."""
        records = await self._run(specs, self._find_kept(specs[0].step, specs[0].split))
        if records is None:
            raise Interrupted
        return records

    def has_final(self, specs: Sequence[RolloutSpec]) -> bool:
        """Return whether a stopped run left a final rollout among these."""
        return any(self._store.rollout(spec.rollout_id) is not None for spec in specs)

    async def run_group(
        self, specs: Sequence[RolloutSpec], on_start: Callable[[], None]
    ) -> list[RolloutRecord] | None:
        """Return the final records of a group, in order; None if some were not run any more.

        ``on_start`` is called before each rollout that is run begins.
        """
        found = (self._store.rollout(spec.rollout_id) for spec in specs)
        kept = {record.rollout_id: record for record in found if record is not None}
        return await self._run(specs, kept, on_start)

    async def run_step(self, step: int, specs: Sequence[RolloutSpec]) -> StepGroups:
        """Run the groups of a step with its spare ones, and return those that they became.

        ``rollout.oversample_groups`` spare groups begin with the step, further ones while groups
        turn out to be untrainable: dynamic sampling (DAPO, arXiv 2503.14476) without its rounds.
        Raises Interrupted when asked to stop, after the attempts in flight have ended.
        """
        kept = self._find_kept(step, "train")
        used = {spec.task.id for spec in specs}
        groups, spares, stopped = StepGroups(self._config), 0, False
        async with task_group() as tasks:
            running = {tasks.create_task(self._run(group, kept)) for group in split_groups(specs)}
            while True:
                while self._lacks_groups(groups, spares) and not self._draining.is_set():
                    spare = await self._sampler.spare(step, spares, used)
                    used.add(spare[0].task.id)
                    spares += 1
                    self._progress.batch_size += len(spare)
                    running.add(tasks.create_task(self._run(spare, kept)))
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for records in [task.result() for task in done]:
                    stopped = stopped or records is None
                    groups.add(records or ())
        if stopped or self._lacks_groups(groups, spares):
            raise Interrupted
        return groups

    def _lacks_groups(self, groups: StepGroups, spares: int) -> bool:
        """Return whether a step with so many spare groups needs another and may have it."""
        limits = self._config.rollout
        wanted = max(groups.untrainable, limits.oversample_groups)
        return spares < min(wanted, limits.spare_groups)

    def _find_kept(self, step: int, split: str) -> dict[str, RolloutRecord]:
        """Return, and show as done, the final records that a stopped run left of a step; raises
        Interrupted when asked to stop.
        """
        if self._draining.is_set():
            raise Interrupted
        records = self._store.rollouts(step=step, split=split, counts=True)
        for record in records:
            note_final(self._progress, record)
        return {record.rollout_id: record for record in records}

    async def _run(
        self,
        specs: Sequence[RolloutSpec],
        kept: Mapping[str, RolloutRecord],
        on_start: Callable[[], None] = lambda: None,
    ) -> list[RolloutRecord] | None:
        """Return the final record of each spec, in order; None if some were not run any more."""
        found = {
            spec.rollout_id: kept[spec.rollout_id] for spec in specs if spec.rollout_id in kept
        }
        missing = [spec for spec in specs if spec.rollout_id not in found]
        fresh = await self._pool.run(missing, on_start)
        found |= {record.rollout_id: record for record in fresh}
        if len(found) < len(specs):
            return None
        return [found[spec.rollout_id] for spec in specs]


def split_groups(specs: Sequence[RolloutSpec]) -> Iterator[list[RolloutSpec]]:
    """Yield the groups of a step, whose rollouts lie side by side."""
    for _, members in groupby(specs, key=lambda spec: spec.group):
        yield list(members)


def note_final(progress: Progress, record: RolloutRecord) -> None:
    """Count a rollout that is final; one of an evaluation beside rollouts is not of their batch."""
    batch = record.split == "train" or progress.phase != "rollouts"
    progress.add_rollout(record.outcome.code, record.sampled_tokens, batch=batch)

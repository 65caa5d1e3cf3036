"""Run agent rollouts for slime in its process: gateway, sandboxes, tasks and the run's store.

Everything starts at the first call and lives as long as the process, on the loop of
``runners.campaigns.slime.loop``. Invariant: slime owns the weights and the engine servers; nothing
here changes either.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError
from conf.schema import Config
from runners.campaigns.group_runner import GroupRunner, note_final
from runners.campaigns.sampler import StepSampler
from runners.campaigns.schedule import evaluation_batch, evaluation_due
from runners.campaigns.slime.arguments import find_engine
from runners.campaigns.slime.batches import Batches, GatheredBatch, StepBatches
from runners.campaigns.slime.job_recorder import JobRecorder, publish_gateway
from runners.campaigns.slime.job_store import open_store
from runners.campaigns.slime.run_config import read_config
from runners.campaigns.slime.sample_maker import SampleMaker, make_sample_config
from runners.campaigns.slime.samples import SampleConfig, make_base_sample
from runners.campaigns.slime.service_watch import ServiceWatch
from runners.campaigns.slime.stream import StreamBatches
from runners.observe.live import Progress
from runners.records.store import RunStore
from runners.rollouts.pool import Pool
from runners.services.driver import note_duplicates
from runners.services.services import Services, start_services
from runners.system.diagnostics import AttemptWatch, seconds_since_turn, watch_stalls
from runners.system.plugins import PluginFailedError
from runners.tasks.contract import Task
from runners.tasks.sets import load_tasks
from runners.training.advantages import key_of

EXIT_DEADLINE_S = 10.0
"""At its exit the process waits so long for the end of what it started."""

_log = logging.getLogger(__name__)
_workers: dict[Path, asyncio.Task[SlimeRolloutWorker]] = {}
"""By run directory; started by the first call, awaited by all."""


async def get_worker(args: Any, run_dir: Path, first_rollout: int) -> SlimeRolloutWorker:
    """Return the worker of a run, started by the first call; raises AgentrlError.

    ``first_rollout``: number of steps in the checkpoint that slime has loaded.
    """
    task = _workers.get(run_dir)
    if task is None:
        start = SlimeRolloutWorker.start(args, run_dir, first_rollout)
        task = asyncio.create_task(start, name="agentrl-worker")
        _workers[run_dir] = task
    # Shielded: a caller that is interrupted must not leave a worker that is half started.
    return await asyncio.shield(task)


def note_handed_over(run_dir: Path) -> None:
    """Record, from any thread, that slime has the batch that was gathered last.

    slime may call this in a process that has no worker of the run; there it does nothing.
    """
    task = _workers.get(run_dir)
    if task is not None and task.done() and not task.cancelled() and task.exception() is None:
        task.result().note_handed_over()


async def close(run_dir: Path) -> None:
    """Close the worker of a run, if there is one; raises StoreError if its end is not recorded."""
    task = _workers.pop(run_dir, None)
    if task is not None:
        await (await task).close()


class SlimeRolloutWorker:
    """The running services of a run in slime's process; used on one event loop."""

    def __init__(
        self,
        config: Config,
        store: RunStore,
        sample_config: SampleConfig,
        recorder: JobRecorder,
    ) -> None:
        """``start`` makes a worker that is ready."""
        self._config = config
        self._store = store
        self._samples = SampleMaker(sample_config, store, recorder)
        self._recorder = recorder
        self._exits = AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self._pool: Pool
        self._batches: Batches | None = None
        """Set once the services run."""
        self._held_out: list[Task] = []
        self._gathered: GatheredBatch | None = None
        """The batch that was gathered last."""
        self._services = ServiceWatch(store, self._end_groups)

    @classmethod
    async def start(cls, args: Any, run_dir: Path, first_rollout: int) -> SlimeRolloutWorker:
        """Start everything; raises AgentrlError, and leaves nothing behind then.

        The run is taken back to the ``first_rollout`` steps that slime's checkpoint has.
        """
        config = read_config(run_dir)
        engine = await find_engine(args, config)
        model = config.model
        tokenizer = model.tokenizer or Path(args.hf_checkpoint)
        weights = model.path or Path(args.hf_checkpoint)
        sample_config = make_sample_config(config, tokenizer, weights)
        async with AsyncExitStack() as exits:
            store = await open_store(config, run_dir)
            exits.callback(store.close)
            worker = cls(config, store, sample_config, JobRecorder(config, store))
            worker._recorder.start(first_rollout)
            watch = AttemptWatch()
            await exits.enter_async_context(
                watch_stalls(
                    watch,
                    run_dir,
                    config.observe.stuck_s,
                    last_turn_s=partial(seconds_since_turn, store),
                    report=_log.warning,
                )
            )
            services = await exits.enter_async_context(
                start_services(
                    config,
                    store,
                    weights=None,
                    tokenizer=tokenizer,
                    version=0,
                    watch=watch,
                    on_service_exit=worker._services.note_exit,
                    # In each job slime counts from 1, the weights with which it starts.
                    version_offset=first_rollout - 1,
                    engine=engine,
                )
            )
            publish_gateway(run_dir, services.context.gateway.urls, config.gateway.public_url)
            tasks = await asyncio.to_thread(load_tasks, config)
            note_duplicates(store, tasks)
            worker._make_batches(services, tasks)
            worker._exits = exits.pop_all()
        heartbeat = asyncio.create_task(
            worker._recorder.send_heartbeats(), name="agentrl-heartbeat"
        )
        worker._exits.callback(heartbeat.cancel)
        worker._exits.callback(atexit.unregister, worker._close_at_exit)
        atexit.register(worker._close_at_exit)
        return worker

    def _make_batches(self, services: Services, tasks: Sequence[Task]) -> None:
        """Prepare rollouts on the running services."""
        config, draining = self._config, asyncio.Event()
        progress = Progress(self._store.run_dir.name, config.run.steps)
        self._pool = services.make_pool(
            config.rollout, draining=draining, on_done=partial(note_final, progress)
        )
        train = [task for task in tasks if task.split == "train"]
        self._held_out = [task for task in tasks if task.split == "held_out"]
        sampler = StepSampler(config, self._store, train, self._note_sampler_failure)
        runner = GroupRunner(
            config, self._store, self._pool, sampler, progress=progress, draining=draining
        )
        make = StreamBatches if config.run.overlap == "stream" else StepBatches
        self._batches = make(config, self._store, sampler, runner)

    async def close(self) -> None:
        """Stop everything; raises StoreError if the end could not be recorded."""
        await self._end_groups()
        async with self._exits:  # services are stopped even if the recorder fails
            await self._recorder.wait_until_finished()
            self._recorder.close()

    async def _end_groups(self) -> None:
        if self._batches is not None:
            await self._batches.close()

    def _close_at_exit(self) -> None:
        """Stop everything as the process exits; whatever does not stop in time dies with it."""
        closing = self._cancel_and_close()
        try:
            asyncio.run_coroutine_threadsafe(closing, self._loop).result(EXIT_DEADLINE_S)
        except RuntimeError:
            # The loop is closed already, or a new thread was needed, which an exiting interpreter
            # refuses to start.
            closing.close()
        except (AgentrlError, FutureTimeout) as error:
            _log.warning("not everything was stopped before the process exited: %s", error)

    async def _cancel_and_close(self) -> None:
        await self._end_groups()
        ours = [task for task in asyncio.all_tasks() if task.get_name().startswith("rollout-")]
        for task in ours:
            task.cancel()  # each stores its record as cancelled
        await asyncio.gather(*ours, return_exceptions=True)
        await self.close()

    def note_handed_over(self) -> None:
        """Record, from any thread, that slime has the batch that was gathered last."""
        with suppress(RuntimeError):  # the loop is closed: the process exits
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        if self._gathered is not None:
            self._recorder.finish_step(self._gathered, self._samples.routing.metrics())

    async def gather(
        self, sample_class: Any, slime_rollout: int
    ) -> tuple[list[list[list[Any]]], dict[str, float]]:
        """Return the samples of a training step, by group and rollout, and figures for slime's log.

        Raises AgentrlError only if no further rollout could work.
        """
        step, config = slime_rollout + 1, self._config
        # train_async.py begins without an evaluation. Nothing else runs yet.
        if step == 1 and config.run.overlap != "none" and evaluation_due(config, 0):
            await self.evaluate(sample_class, 0)
        self._recorder.begin_step(step)
        assert self._batches is not None
        batch = await self._services.run(self._batches.gather(step))
        self._gathered = batch
        self._samples.begin_batch()
        found = []
        for place, group in enumerate(batch.groups):
            number = slime_rollout * config.run.tasks_per_step + place
            is_trained = key_of(group[0]) not in batch.untrainable
            rollouts = []
            for member, record in enumerate(group):
                index = number * config.run.rollouts_per_task + member
                base = make_base_sample(sample_class, record, number, index)
                rollouts.append(await self._samples.make(base, record, is_trained=is_trained))
            found.append(rollouts)
        return found, {
            "agentrl/groups_replaced": len(batch.left_out),
            "agentrl/groups_untrainable": len(batch.untrainable),
            **({"agentrl/staleness_max": max(batch.ages)} if batch.ages else {}),
        }

    async def evaluate(self, sample_class: Any, slime_rollout: int) -> dict[str, dict[str, Any]]:
        """Run the held-out tasks and return the results in slime's form; {} if none has a grade.

        slime evaluates before its rollout 0 and after others, under the same number. Raises
        ServiceError if a service that rollouts need has exited.
        """
        # The number of an evaluation after rollout n is n: its rollouts have begun by then.
        step = slime_rollout + (self._recorder.newest_step > slime_rollout)
        specs = {
            spec.rollout_id: spec for spec in evaluation_batch(self._config, self._held_out, step)
        }
        # Graded before the job was lost and started again: by the same weights.
        earlier = [
            record
            for record in self._store.rollouts(step=step, split="eval", counts=True)
            if record.reward is not None and record.rollout_id in specs
        ]
        for record in earlier:
            del specs[record.rollout_id]
        records = earlier + await self._services.run(self._pool.run(list(specs.values())))
        self._recorder.record_evaluation(step, records)
        graded = [record for record in records if record.reward is not None]
        if not graded:
            _log.error("evaluation after step %d: no rollout has a grade", step)
            return {}
        samples = []
        for index, record in enumerate(sorted(graded, key=lambda record: record.group)):
            base = sample_class(index=index, group_index=record.group, prompt="")
            samples += await self._samples.convert(base, record, evaluation=True)
        truncated = type(samples[0].status)("truncated")
        return {
            "held_out": {
                "rewards": [sample.reward for sample in samples],
                "truncated": [sample.status == truncated for sample in samples],
                "samples": samples,
                "agentrl_failed": len(records) - len(graded),
            }
        }

    def _note_sampler_failure(self, step: int, error: PluginFailedError) -> None:
        self._store.event("sampler_failed", {"step": step, "reason": str(error)})

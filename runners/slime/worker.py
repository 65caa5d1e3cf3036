"""Run agent rollouts for slime in its process: gateway, sandboxes, tasks and the run's store.

Everything starts at the first call and lives as long as the process. Invariant: slime owns the
weights and the engine servers; nothing here changes either.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AsyncExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from conf.compose import from_json
from conf.errors import AgentrlError, ConfigError, error_text
from conf.schema import Config
from conf.sections.training import RoutingRolloutConfig
from runners.campaign.schedule import evaluation_batch
from runners.diagnostics.attempt_progress import AttemptWatch
from runners.diagnostics.stalls import seconds_since_turn, watch_stalls
from runners.gateway.tokenizer import load_tokenizer
from runners.processes.service import ServiceError
from runners.rollouts.pool import Pool
from runners.rollouts.spec import RolloutSpec, make_spec
from runners.runtime.dataset_check import check_datasets, note_datasets
from runners.runtime.policy import find_captured_shape
from runners.runtime.services import start_services
from runners.slime.arguments import find_engine, sample_step, sample_task
from runners.slime.job_recorder import JobRecorder, publish_gateway
from runners.slime.samples import SampleConfig, placeholder, to_slime_samples
from runners.store.run_state import REMOTE_SILENCE_S
from runners.store.run_store import STORE_FILE, RunStore
from runners.store.status_file import find_remote_driver
from runners.tasks.contract import Task
from runners.tasks.task_sets import load_tasks
from runners.training.placeholder import read_pad_token
from runners.training.stored_rollout import load_rollout
from runners.trajectory.record import RolloutRecord
from runners.trajectory.routing import RoutingError

CONFIG = "config.json"
EXIT_DEADLINE_S = 10.0
"""At its exit the process waits so long for the end of what it started."""
POLL_S = 2.0

_log = logging.getLogger(__name__)
_workers: dict[Path, asyncio.Task[SlimeRolloutWorker]] = {}
"""By run directory; started by the first call, awaited by all."""


async def get_worker(args: Any, run_dir: Path) -> SlimeRolloutWorker:
    """Return the worker of a run, started by the first call; raises AgentrlError."""
    task = _workers.get(run_dir)
    if task is None:
        task = asyncio.create_task(SlimeRolloutWorker.start(args, run_dir), name="agentrl-worker")
        _workers[run_dir] = task
    # Shielded: slime may cancel the caller that started it, and others wait for the same task.
    return await asyncio.shield(task)


def note_training_started(run_dir: Path, samples: Sequence[Any]) -> None:
    """Record, from any thread, that slime now trains on these samples.

    slime may call this in a process that has no worker of the run; there it does nothing.
    """
    task = _workers.get(run_dir)
    if task is not None and task.done() and not task.cancelled() and task.exception() is None:
        task.result().note_training_started(samples)


async def close(run_dir: Path) -> None:
    """Close the worker of a run, if there is one; raises StoreError if its end is not recorded."""
    task = _workers.pop(run_dir, None)
    if task is not None:
        await (await task).close()


@cache
def read_config(run_dir: Path) -> Config:
    """Return the configuration in ``run_dir``; raises ConfigError."""
    file = run_dir / CONFIG
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file} cannot be read: {error}"]) from error
    return from_json(text, source=str(file))


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
        self._sample_config = sample_config
        self._recorder = recorder
        routing = config.routing_replay
        self._stops_at_bad_routing = (
            isinstance(routing, RoutingRolloutConfig) and routing.on_fault == "stop"
        )
        self._exits = AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self._pool: Pool
        self._tasks: dict[str, Task] = {}
        self._groups_per_step = 1
        self._group_size = 1
        self._service_error: ServiceError | None = None
        self._evaluations_begun: Counter[tuple[int, int]] = Counter()
        """By step and sample index, which slime counts anew in each evaluation data set."""

    @classmethod
    async def start(cls, args: Any, run_dir: Path) -> SlimeRolloutWorker:
        """Start everything; raises AgentrlError, and leaves nothing behind then."""
        config = read_config(run_dir)
        config = config.model_copy(update={"engine": await find_engine(args, config)})
        model = config.model
        tokenizer = model.tokenizer or Path(args.hf_checkpoint)
        weights = model.path or Path(args.hf_checkpoint)
        sample_config = SampleConfig(
            fanout=config.fanout,
            train_unfinished=config.trainer.train_unfinished,
            decode=load_tokenizer(tokenizer).decode,
            pad=read_pad_token(weights),
            shape=find_captured_shape(config, weights),
        )
        async with AsyncExitStack() as exits:
            store = await _open_store(config, run_dir)
            exits.callback(store.close)
            worker = cls(config, store, sample_config, JobRecorder(config, store))
            worker._recorder.start()
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
                    on_service_exit=worker._note_service_exit,
                )
            )
            publish_gateway(run_dir, services.context.gateway.url, config.gateway.public_url)
            worker._tasks = {task.id: task for task in await asyncio.to_thread(load_tasks, config)}
            worker._exits = exits.pop_all()
        worker._groups_per_step = args.rollout_batch_size
        worker._group_size = args.n_samples_per_prompt
        worker._pool = services.make_pool(
            config.rollout, draining=asyncio.Event(), on_done=lambda record: None
        )
        heartbeat = asyncio.create_task(
            worker._recorder.send_heartbeats(), name="agentrl-heartbeat"
        )
        worker._exits.callback(heartbeat.cancel)
        worker._exits.callback(atexit.unregister, worker._close_at_exit)
        atexit.register(worker._close_at_exit)
        return worker

    async def close(self) -> None:
        """Stop everything; raises StoreError if the end could not be recorded."""
        async with self._exits:  # services are stopped even if the recorder fails
            await self._recorder.wait_until_finished()
            self._recorder.close()

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
        ours = [task for task in asyncio.all_tasks() if task.get_name().startswith("rollout-")]
        for task in ours:
            task.cancel()  # each stores its record as cancelled
        await asyncio.gather(*ours, return_exceptions=True)
        await self.close()

    def note_training_started(self, samples: Sequence[Any]) -> None:
        """Record, from any thread, that slime now trains on these samples."""
        steps = {step for sample in samples if (step := sample_step(sample)) is not None}
        with suppress(RuntimeError):  # the loop is closed: the process exits
            self._loop.call_soon_threadsafe(self._recorder.finish_steps, sorted(steps))

    async def run_rollout(self, sample: Any, *, temperature: float, evaluation: bool) -> list[Any]:
        """Run one rollout and return its samples.

        Raises AgentrlError only if no further rollout could work, and CancelledError.
        """
        spec = self._make_spec(sample, temperature, evaluation)
        record = None if evaluation else self._recorder.begin_rollout(spec)
        if record is None:
            record = await self._run(spec)
        try:
            stored = load_rollout(self._store, self._sample_config.shape, record)
            if not evaluation:
                self._recorder.keep_loaded(stored)
            return to_slime_samples(sample, stored, self._sample_config, evaluation=evaluation)
        except Exception as error:  # a failed rollout is data
            if isinstance(error, RoutingError) and self._stops_at_bad_routing:
                raise
            text = f"{type(error).__name__}: {error_text(error)}"
            _log.error("rollout %s has no samples: %s", spec.rollout_id, text)
            self._store.event("unbuilt", {"rollout_id": spec.rollout_id, "error": text})
            return [placeholder(sample, record, self._sample_config)]

    async def evaluate(self, sample_class: Any, slime_rollout: int) -> dict[str, dict[str, Any]]:
        """Run the held-out tasks and return the results in slime's form; {} if none has a grade.

        slime evaluates before its rollout 0 and after others, under the same number. Raises
        ServiceError if a service that rollouts need has exited.
        """
        if self._service_error is not None:
            raise self._service_error
        held_out = [task for task in self._tasks.values() if task.split == "held_out"]
        # The number of an evaluation after rollout n is n: its rollouts have begun by then.
        step = slime_rollout + (self._recorder.newest_step > slime_rollout)
        specs = {spec.rollout_id: spec for spec in evaluation_batch(self._config, held_out, step)}
        # Graded before the job was lost and started again: by the same weights.
        earlier = [
            record
            for record in self._store.rollouts(step=step, split="eval", counts=True)
            if record.reward is not None and record.rollout_id in specs
        ]
        for record in earlier:
            del specs[record.rollout_id]
        records = earlier + await self._pool.run(list(specs.values()))
        self._recorder.record_evaluation(step, records)
        graded = [record for record in records if record.reward is not None]
        if not graded:
            _log.error("evaluation after step %d: no rollout has a grade", step)
            return {}
        samples = []
        for index, record in enumerate(sorted(graded, key=lambda record: record.group)):
            base = sample_class(index=index, group_index=record.group, prompt="")
            stored = load_rollout(self._store, self._sample_config.shape, record)
            samples += to_slime_samples(base, stored, self._sample_config, evaluation=True)
        truncated = type(samples[0].status)("truncated")
        return {
            "held_out": {
                "rewards": [sample.reward for sample in samples],
                "truncated": [sample.status == truncated for sample in samples],
                "samples": samples,
                "agentrl_failed": len(records) - len(graded),
            }
        }

    async def _run(self, spec: RolloutSpec) -> RolloutRecord:
        if self._service_error is not None:
            raise self._service_error
        (record,) = await self._pool.run([spec])
        return record

    def _make_spec(self, sample: Any, temperature: float, evaluation: bool) -> RolloutSpec:
        """Return the rollout of a sample. slime numbers groups and samples over the whole job."""
        if evaluation:
            split, step, group = "eval", self._recorder.newest_step, sample.index
            member = self._evaluations_begun[step, group]
            self._evaluations_begun[step, group] += 1
        else:
            step, group = divmod(sample.group_index, self._groups_per_step)
            split, step, member = "train", step + 1, sample.index % self._group_size
        task = sample_task(sample, self._tasks)
        return make_spec(self._config, split, step, group, member, task, temperature=temperature)

    def _note_service_exit(self, error: ServiceError) -> None:
        self._service_error = error
        self._store.event("service_gone", {"message": str(error)})


async def _open_store(config: Config, run_dir: Path) -> RunStore:
    """Open the run's store, once an earlier driver on another machine has gone silent.

    Raises StoreError if the tasks have changed since the job began.
    """
    until = time.monotonic() + REMOTE_SILENCE_S
    while (host := find_remote_driver(run_dir)) is not None and time.monotonic() < until:
        _log.warning("waiting for the run's driver on %s to be gone", host)
        await asyncio.sleep(POLL_S)
    is_new = not (run_dir / STORE_FILE).is_file()
    content = config.model_dump(mode="json")
    store = RunStore.create(run_dir, content) if is_new else RunStore.open(run_dir)
    try:
        (note_datasets if is_new else check_datasets)(store, config)
    except BaseException:
        store.close()
        raise
    return store

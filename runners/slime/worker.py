"""What slime's rollouts stand on, started at the first one and kept for the life of the process:
the gateway (a process of its own), sandboxes, tasks, the run's store.

slime owns the weights and the servers; nothing here changes either.
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
from functools import cache
from pathlib import Path
from typing import Any

from conf.compose import from_json
from conf.errors import AgentrlError, ConfigError, error_text
from conf.schema import Config
from runners.campaign.schedule import evaluation_batch
from runners.diagnostics.attempt_progress import AttemptWatch
from runners.gateway.tokenizer import load_tokenizer
from runners.processes.service import ServiceError
from runners.rollouts.context import RolloutSpec
from runners.rollouts.pool import Pool
from runners.rollouts.seeds import seed_of
from runners.runtime.services import captured_shape, start_services
from runners.slime.arguments import slimes_engine, step_of, task_of
from runners.slime.journal import Journal, publish_gateway
from runners.slime.samples import Making, Taken, made, stand_in
from runners.store.published import driven_elsewhere
from runners.store.run_state import REMOTE_SILENCE_S
from runners.store.run_store import STORE_FILE, RunStore
from runners.tasks.contract import Task
from runners.tasks.datasets import load_tasks
from runners.training.placeholder import pad_token
from runners.trajectory.graph import build_segments
from runners.trajectory.record import RolloutRecord, Segment
from runners.trajectory.routing import Routing, build_segment_routing

CONFIG = "config.json"
LEAVE_S = 10.0
"""At its end the process waits so long for its last words."""
POLL_S = 2.0

_log = logging.getLogger(__name__)
_rigs: dict[Path, asyncio.Task[Rig]] = {}
"""By run directory; started by the first call, awaited by all."""


async def rig(args: Any, run_dir: Path) -> Rig:
    """Return the rig of a run, started if this is the first call; raises AgentrlError."""
    task = _rigs.get(run_dir)
    if task is None:
        task = _rigs[run_dir] = asyncio.create_task(Rig.start(args, run_dir), name="agentrl-rig")
    return await asyncio.shield(task)  # a caller that slime gives up takes nobody's rig down


def handed_over(run_dir: Path, samples: Sequence[Any]) -> None:
    """Note, from any thread, that slime trains on these samples now; a process without the run's
    rig knows nothing of its steps.
    """
    task = _rigs.get(run_dir)
    if task is not None and task.done() and not task.cancelled() and task.exception() is None:
        task.result().hand_over(samples)


async def close(run_dir: Path) -> None:
    """End what was started for a run; the end of the process says as much as it can."""
    task = _rigs.pop(run_dir, None)
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


class Rig:
    """Everything that rollouts of a run use, in this process; one event loop."""

    def __init__(self, config: Config, store: RunStore, making: Making, journal: Journal) -> None:
        self._config = config
        self._store = store
        self._making = making
        self._journal = journal
        self._exits = AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self._pool: Pool
        self._tasks: dict[str, Task] = {}
        self._groups_per_step = 1
        self._group_size = 1
        self._gone: ServiceError | None = None
        self._measured: Counter[tuple[int, int]] = Counter()
        """Evaluations begun, by step and sample: slime numbers the samples of each data set."""

    @classmethod
    async def start(cls, args: Any, run_dir: Path) -> Rig:
        """Start everything; raises AgentrlError, and leaves nothing behind then."""
        config = read_config(run_dir)
        config = config.model_copy(update={"engine": await slimes_engine(args, config)})
        model = config.model
        tokenizer = model.tokenizer or Path(args.hf_checkpoint)
        weights = model.path or Path(args.hf_checkpoint)
        making = Making(
            fanout=config.fanout,
            train_unfinished=config.trainer.train_unfinished,
            decode=load_tokenizer(tokenizer).decode,
            pad=pad_token(weights),
            shape=captured_shape(config, weights),
        )
        async with AsyncExitStack() as exits:
            store = await _own_store(config, run_dir)
            exits.callback(store.close)
            self = cls(config, store, making, Journal(config, store))
            self._journal.begin()
            services = await exits.enter_async_context(
                start_services(
                    config,
                    store,
                    weights=None,
                    tokenizer=tokenizer,
                    version=0,
                    watch=AttemptWatch(),
                    on_service_exit=self._service_gone,
                )
            )
            publish_gateway(run_dir, services.context.gateway.url, config.gateway.public_url)
            self._tasks = {task.id: task for task in await asyncio.to_thread(load_tasks, config)}
            self._exits = exits.pop_all()
        self._groups_per_step = args.rollout_batch_size
        self._group_size = args.n_samples_per_prompt
        self._pool = services.make_pool(
            config.rollout, draining=asyncio.Event(), on_done=lambda record: None
        )
        heart = asyncio.create_task(self._journal.beat(), name="agentrl-heartbeat")
        self._exits.callback(heart.cancel)
        self._exits.callback(atexit.unregister, self._leave)
        atexit.register(self._leave)
        return self

    async def close(self) -> None:
        """End everything."""
        async with self._exits:  # even if its last words cannot be written
            await self._journal.settled()
            self._journal.close()

    def _leave(self) -> None:
        """End everything as the process ends: whatever does not, goes with it."""
        leaving = self._leaving()
        try:
            asyncio.run_coroutine_threadsafe(leaving, self._loop).result(LEAVE_S)
        except RuntimeError:  # the loop is closed, or a thread was needed, of which there are none
            leaving.close()
        except (AgentrlError, FutureTimeout) as error:
            _log.warning("left in a hurry: %s", error)

    async def _leaving(self) -> None:
        ours = [task for task in asyncio.all_tasks() if task.get_name().startswith("rollout-")]
        for task in ours:
            task.cancel()  # each is stored as cancelled
        await asyncio.gather(*ours, return_exceptions=True)
        await self.close()

    def hand_over(self, samples: Sequence[Any]) -> None:
        """Note, from any thread, that slime trains on these samples now."""
        steps = {step for sample in samples if (step := step_of(sample)) is not None}
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._journal.handed_over, sorted(steps))

    async def rollout(self, sample: Any, *, temperature: float, evaluation: bool) -> list[Any]:
        """Run one rollout and return its samples; raises AgentrlError only if it is no use to go
        on.
        """
        spec = self._spec(sample, temperature, evaluation)
        record = None if evaluation else self._journal.rollout_begins(spec)
        if record is None:
            record = await self._run(spec)
        try:
            return made(sample, self._taken(record), self._making, evaluation=evaluation)
        except Exception as error:  # a failed rollout is data
            text = f"{type(error).__name__}: {error_text(error)}"
            _log.error("rollout %s has no samples: %s", spec.rollout_id, text)
            self._store.event("unbuilt", {"rollout_id": spec.rollout_id, "error": text})
            return [stand_in(sample, record, self._making)]

    async def evaluation(self, sample_class: Any, rollout_id: int) -> dict[str, dict[str, Any]]:
        """Run the held-out tasks and return slime's figures of them; none if nothing is graded.

        slime evaluates before its rollout 0 and after others, under the same number. Raises
        ServiceError if what rollouts need is gone.
        """
        if self._gone is not None:
            raise self._gone
        held_out = [task for task in self._tasks.values() if task.split == "held_out"]
        step = rollout_id + (self._journal.step > rollout_id)
        specs = {spec.rollout_id: spec for spec in evaluation_batch(self._config, held_out, step)}
        kept = [
            record
            for record in self._store.rollouts(step=step, split="eval", counts=True)
            if record.reward is not None and record.rollout_id in specs
        ]
        for record in kept:  # the same weights have answered already, before the job was lost
            del specs[record.rollout_id]
        records = kept + await self._pool.run(list(specs.values()))
        self._journal.evaluated(step, records)
        graded = [record for record in records if record.reward is not None]
        if not graded:
            _log.error("evaluation after step %d: no rollout has a grade", step)
            return {}
        samples = []
        for index, record in enumerate(sorted(graded, key=lambda record: record.group)):
            base = sample_class(index=index, group_index=record.group, prompt="")
            samples += made(base, self._taken(record), self._making, evaluation=True)
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
        if self._gone is not None:
            raise self._gone
        (record,) = await self._pool.run([spec])
        return record

    def _spec(self, sample: Any, temperature: float, evaluation: bool) -> RolloutSpec:
        """Return the rollout of a sample. slime numbers groups and samples over the whole job."""
        if evaluation:
            split, step, group = "eval", self._journal.step, sample.index
            member = self._measured[step, group]
            self._measured[step, group] += 1
        else:
            step, group = divmod(sample.group_index, self._groups_per_step)
            split, step, member = "train", step + 1, sample.index % self._group_size
        rollout_id = f"{split}-{step:06d}-{group:03d}-{member:02d}"
        seeded = f"eval-{group}" if evaluation else rollout_id
        return RolloutSpec(
            rollout_id=rollout_id,
            split=split,
            step=step,
            group=group,
            member=member,
            task=task_of(sample, self._tasks),
            seed=seed_of(self._config.seed, seeded),
            temperature=temperature,
        )

    def _taken(self, record: RolloutRecord) -> Taken:
        turns = self._store.turns(record.session_id)
        shape = self._making.shape
        kept = self._store.routing(record.session_id) if shape is not None else {}

        def routing(chain: Segment) -> Routing | None:
            return None if shape is None else build_segment_routing(chain, kept, shape)

        return Taken(record, turns, build_segments(turns), routing)

    def _service_gone(self, error: ServiceError) -> None:
        self._gone = error
        self._store.event("service_gone", {"message": str(error)})


async def _own_store(config: Config, run_dir: Path) -> RunStore:
    """Return the run's store, when the process of an earlier node is heard of no more."""
    until = time.monotonic() + REMOTE_SILENCE_S
    while (host := driven_elsewhere(run_dir)) is not None and time.monotonic() < until:
        _log.warning("waiting for the run's driver on %s to be gone", host)
        await asyncio.sleep(POLL_S)
    if (run_dir / STORE_FILE).is_file():
        return RunStore.open(run_dir)
    return RunStore.create(run_dir, config.model_dump(mode="json"))

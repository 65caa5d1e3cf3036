"""What slime's rollouts stand on, started at the first one and kept for the life of the process:
the gateway (a process of its own), sandboxes, tasks, the run's store.

slime owns the weights and the servers; nothing here changes either.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

from conf import schema
from conf.compose import from_json
from conf.errors import AgentrlError, ConfigError, error_text
from runners.backends.samples import Making, Taken, made, stand_in
from runners.campaign.schedule import evaluation_batch
from runners.engines.client import HttpEngine
from runners.gateway.tokenizer import load_tokenizer
from runners.limits import Admission
from runners.observe.attempts import AttemptWatch
from runners.pool import Pool
from runners.rollout import RolloutSpec
from runners.seeds import seed_of
from runners.service import ServiceError
from runners.stack import captured_shape, rollout_stack
from runners.tasks.contract import Task
from runners.tasks.datasets import load_tasks
from runners.training.placeholder import pad_token
from runners.trajectory.graph import segments
from runners.trajectory.record import RolloutRecord, Segment
from runners.trajectory.routing import Routing, segment_routing
from runners.trajectory.run_state import State
from runners.trajectory.store import STORE_FILE, RunStore

CONFIG = "config.json"
WORKERS_S = 30.0

_log = logging.getLogger(__name__)
_rigs: dict[Path, asyncio.Task[Rig]] = {}
"""By run directory; started by the first call, awaited by all."""


async def rig(args: Any, run_dir: Path) -> Rig:
    """Return the rig of a run, started if this is the first call; raises AgentrlError."""
    task = _rigs.get(run_dir)
    if task is None:
        task = _rigs[run_dir] = asyncio.create_task(Rig.start(args, run_dir), name="agentrl-rig")
    return await asyncio.shield(task)  # a caller that slime gives up takes nobody's rig down


async def close(run_dir: Path) -> None:
    """End what was started for a run; the end of the process does the same."""
    task = _rigs.pop(run_dir, None)
    if task is not None:
        await (await task).close()


@cache
def read_config(run_dir: Path) -> schema.Config:
    """Return the configuration in ``run_dir``; raises ConfigError."""
    file = run_dir / CONFIG
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file} cannot be read: {error}"]) from error
    return from_json(text, source=str(file))


class Rig:
    """Everything that rollouts of a run use, in this process; one event loop."""

    def __init__(self, config: schema.Config, store: RunStore, making: Making) -> None:
        self._config = config
        self._store = store
        self._making = making
        self._exits = AsyncExitStack()
        self._pool: Pool
        self._tasks: dict[str, Task] = {}
        self._groups_per_step = 1
        self._group_size = 1
        self._gone: ServiceError | None = None
        self._step = 0
        """Of the newest training rollout."""
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
        found = (run_dir / STORE_FILE).is_file()
        document = config.model_dump(mode="json")
        store = RunStore.open(run_dir) if found else RunStore.create(run_dir, document)
        self = cls(config, store, making)
        try:
            self._exits.callback(store.close)
            store.set_state(State.RUNNING)
            stack = await self._exits.enter_async_context(
                rollout_stack(
                    config,
                    store,
                    weights=None,
                    tokenizer=tokenizer,
                    version=0,
                    watch=AttemptWatch(),
                    on_service_exit=self._service_gone,
                )
            )
            self._tasks = {task.id: task for task in await asyncio.to_thread(load_tasks, config)}
        except BaseException:
            await self._exits.aclose()
            raise
        self._groups_per_step = args.rollout_batch_size
        self._group_size = args.n_samples_per_prompt
        self._pool = Pool(
            stack.tools,
            admission=Admission(
                config.rollout.concurrency, adaptive=config.rollout.limits.adaptive
            ),
            attempts=config.rollout.attempts,
            breaker=config.rollout.breaker,
            draining=asyncio.Event(),
            on_done=lambda record: None,
        )
        return self

    async def close(self) -> None:
        """End everything."""
        self._store.set_state(State.DONE)
        await self._exits.aclose()

    async def rollout(self, sample: Any, *, temperature: float, evaluation: bool) -> list[Any]:
        """Run one rollout and return its samples; raises AgentrlError only if it is no use to go
        on.
        """
        spec = self._spec(sample, temperature, evaluation)
        record = await self._run(spec)
        try:
            return made(sample, self._taken(record), self._making, evaluation=evaluation)
        except Exception as error:  # a failed rollout is data
            text = f"{type(error).__name__}: {error_text(error)}"
            _log.error("rollout %s has no samples: %s", spec.rollout_id, text)
            self._store.event("unbuilt", {"rollout_id": spec.rollout_id, "error": text})
            return [stand_in(sample, record, self._making)]

    async def evaluation(self, sample_class: Any, step: int) -> dict[str, dict[str, Any]]:
        """Run the held-out tasks and return slime's figures of them; none if nothing is graded."""
        held_out = [task for task in self._tasks.values() if task.split == "held_out"]
        specs = evaluation_batch(self._config, held_out, step)
        records = await self._pool.run(specs)
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
            split, step, group = "eval", self._step, sample.index
            member = self._measured[step, group]
            self._measured[step, group] += 1
        else:
            step, group = divmod(sample.group_index, self._groups_per_step)
            split, step, member = "train", step + 1, sample.index % self._group_size
            self._step = max(self._step, step)
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
            return None if shape is None else segment_routing(chain, kept, shape)

        return Taken(record, turns, segments(turns), routing)

    def _service_gone(self, error: ServiceError) -> None:
        self._gone = error
        self._store.event("service_gone", {"message": str(error)})


def task_of(sample: Any, tasks: Mapping[str, Task]) -> Task:
    """Return the task that a sample's row is; raises ConfigError if it is none of the run's."""
    metadata = sample.metadata or {}
    remote = metadata.get("remote_env_info") or {}
    named = [metadata.get("instance_id"), remote.get("instance_id"), sample.label]
    for name in named:
        if isinstance(name, str) and name in tasks:
            return tasks[name]
    raise ConfigError(
        [
            f"slime's sample {sample.index} names {named}, none of the {len(tasks)} tasks of the "
            "run: give --prompt-data the file of task.path, with --metadata-key metadata"
        ]
    )


async def slimes_engine(args: Any, config: schema.Config) -> schema.SglangEngine:
    """Return slime's servers as the run's engine; raises EngineError if its router does not answer.

    Generations go through the router, which knows servers that slime restarts. It drops the field
    that asks for routing, so with routing replay the servers are called themselves.
    """
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    router = HttpEngine(url)
    try:
        found: Sequence[Any] = (await router.ask("/workers", deadline_s=WORKERS_S))["workers"]
    finally:
        await router.close()
    workers = [str(worker["url"]).rstrip("/") for worker in found]
    if not workers:
        raise AgentrlError(f"slime's router at {url} has no workers yet")
    direct = isinstance(config.routing_replay, schema.RoutingRollout)
    given = config.engine
    reads = (
        {"tool_call_parser": None, "reasoning_parser": None}
        if isinstance(given, schema.EmbeddedEngine)
        else given.model_dump(include={"tool_call_parser", "reasoning_parser"})
    )
    return schema.SglangEngine(
        kind="sglang", url=workers[0] if direct else url, workers=workers, **reads
    )

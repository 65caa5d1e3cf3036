"""One step of a job with many sandboxes: real driver, gateway and store; nodes of ``nodes.py``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import ray

from conf.compose import compose
from conf.schema import Config
from conf.sections.executor import RayExecutorConfig
from runners.campaigns.group_runner import GroupRunner
from runners.campaigns.sampler import StepSampler
from runners.campaigns.slime.samples import SampleConfig, make_base_sample, to_slime_samples
from runners.gateway.client import GatewayAdmin
from runners.gateway.http.connections import raise_descriptor_limit
from runners.observe.live.progress import Progress
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import load_tokenizer, write_tiny_tokenizer
from runners.rollouts.pool import Pool
from runners.services.ray_workers.executor import RayExecutor
from runners.system.concurrency.limits import Admission
from runners.system.processes.ledger import Ledger, StoreRecorder
from runners.tasks.contract import Task
from runners.tasks.harbor.environment import ensure_environment
from runners.tasks.sets.task_sets import load_tasks
from runners.training.step_samples import load_rollout
from tests.benchmarks.size.agent import make_tokenizer
from tests.benchmarks.size.nodes import (
    EmptyBackend,
    HostedNodes,
    make_context,
    start_nodes,
)
from tests.benchmarks.size.usage import Usage, cpu_s, resident_mb, watched
from tests.fakes.harbor_tasks import toml, write_task
from tests.fakes.replicated_gateway import replicated_gateway
from tests.fakes.running_gateway import settings_for
from tests.fakes.slime_rollout import Sample

IMAGE, DOCKERFILE = "python:3.12-slim", "environment/Dockerfile"
MEMBERS = 8
"""Rollouts of a group."""
WARM_UP = 2
"""Groups of the first step, which is not measured."""
IDLE_S = 10.0
CONVERTED = 32
"""Rollouts that are made into samples, to measure one."""
PATIENCE = "rollout.deadlines={boot_s:3600,harness_s:3600,turn_s:3600,guard_s:36000}"
"""The clock says nothing here: a thousand agents wait for two cores."""


@dataclass(frozen=True, slots=True)
class Load:
    """The size of a job."""

    sandboxes: int
    """Rollouts of the step, all at once."""
    turns: int
    """Of each."""
    nodes: int
    replicas: int
    """Of the gateway."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step cost."""

    load: Load
    seconds: float
    """By the clock."""
    driver: Usage
    gateway: Usage
    """Of its processes: those that serve, then those for long texts."""
    stored_mb: float
    """By which the run's directory grew."""
    driver_idle: float
    """Share of a core that the driver takes while nothing runs."""
    convert_ms: float
    """CPU time of the driver to make a rollout into slime's samples."""
    sample_mb: float
    """Memory of the samples of a rollout."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that is ready for its steps."""

    store: RunStore
    sampler: StepSampler
    runner: GroupRunner
    gateway: Sequence[psutil.Process]
    """The processes that serve."""

    async def run_step(self, step: int, groups: int) -> list[RolloutRecord]:
        """Run the first groups of a step, and return their rollouts."""
        specs = (await self.sampler.batch(step))[: groups * MEMBERS]
        self.store.begin_step(step, [spec.task.id for spec in specs if spec.member == 0])
        found = await self.runner.run_step(step, specs)
        return [record for record, _ in found.advantages]


async def measure(load: Load, directory: Path) -> Measured:
    """Run a step of that size."""
    raise_descriptor_limit()
    async with running_job(load, directory) as job:
        await job.run_step(1, WARM_UP)
        used = cpu_s(me := psutil.Process())
        await asyncio.sleep(IDLE_S)
        idle = (cpu_s(me) - used) / IDLE_S
        processes = [*job.gateway]
        for process in job.gateway:
            processes += process.children(recursive=True)
        before = stored_bytes(job.store)
        began = time.monotonic()
        async with watched([me], processes) as (driver, gateway):
            records = await job.run_step(2, load.sandboxes // MEMBERS)
        seconds = time.monotonic() - began
        assert len(records) == load.sandboxes, "every rollout is graded"
        stored = stored_bytes(job.store) - before
        costs = measure_conversion(job.store, records, directory / "tokenizer")
    return Measured(load, seconds, driver, gateway, stored / 1e6, idle, *costs)


@asynccontextmanager
async def running_job(load: Load, directory: Path) -> AsyncIterator[Job]:
    """Start nodes, engine, gateway and driver."""
    config, tasks = await make_config(load, directory)
    run_dir, tokenizer = directory / "run", directory / "tokenizer"
    write_tiny_tokenizer(tokenizer, make_tokenizer())
    async with AsyncExitStack() as exits:
        store = exits.enter_context(RunStore.create(run_dir, config.model_dump(mode="json")))
        ledger = Ledger(store)
        calls = 2 * load.sandboxes + 8 * load.nodes
        nodes = await asyncio.to_thread(start_nodes, load.turns, tokenizer, calls)
        exits.callback(ray.shutdown)
        engine_url = await nodes.call("start")
        settings = settings_for(
            engine_url,
            tokenizer,
            run_dir,
            max_context_tokens=10**6,
            ping_s=10.0,
            turn_s=3600.0,
        )
        gateway = await exits.enter_async_context(replicated_gateway(settings, load.replicas))
        admin = GatewayAdmin(gateway.admin.urls, gateway.admin.admin_key, deadline_s=3600)
        exits.push_async_callback(admin.close)
        context = make_context(config, admin, None, None)
        assert isinstance(config.executor, RayExecutorConfig)
        cluster = HostedNodes(nodes, load.nodes)
        executor = RayExecutor(config.executor, cluster, store, ledger, silence_s=3600)
        exits.push_async_callback(executor.close)
        await executor.start(config, admin, context, StoreRecorder(store, ledger))
        draining = asyncio.Event()
        pool = Pool(
            context,
            store,
            executor,
            admission=Admission(load.sandboxes, adaptive=False),
            attempts=1,
            breaker=1,
            draining=draining,
            on_done=lambda _: None,
        )
        sampler = StepSampler(config, store, tasks, lambda *_: None)
        progress = Progress("size", config.run.steps)
        runner = GroupRunner(config, store, pool, sampler, progress=progress, draining=draining)
        yield Job(store, sampler, runner, gateway.processes())


async def make_config(load: Load, directory: Path) -> tuple[Config, list[Task]]:
    """Return the configuration of a job, and its tasks, which are graded in their sandboxes."""
    groups = load.sandboxes // MEMBERS
    for number in range(groups):
        write_task(
            directory / "tasks" / f"task-{number:03}",
            {"task.toml": toml(environment=f'docker_image = "{IMAGE}"'), DOCKERFILE: None},
        )
    config = compose(
        [
            *("executor=ray", "gateway.host=0.0.0.0", "task=jsonl", f"task.path={directory}/tasks"),
            *(f"run.tasks_per_step={groups}", f"run.rollouts_per_task={MEMBERS}", "run.steps=2"),
            *("run.eval_tasks=0", "rollout.spare_groups=0", PATIENCE),
            f"executor.rollouts_per_node={-(-load.sandboxes // load.nodes)}",
        ]
    )
    backend = EmptyBackend()
    made = [await ensure_environment(task, backend) for task in load_tasks(config)]
    return config, [replace(task, image=IMAGE) for task in made]


def stored_bytes(store: RunStore) -> int:
    """Return the bytes of a run's store, all of it in its files."""
    store.query("PRAGMA wal_checkpoint(TRUNCATE)")
    files = [store.run_dir / "store.sqlite", *(store.run_dir / "arrays").iterdir()]
    return sum(path.stat().st_size for path in files)


def measure_conversion(
    store: RunStore, records: Sequence[RolloutRecord], tokenizer: Path
) -> tuple[float, float]:
    """Return the CPU milliseconds in which a rollout is read and made into slime's samples, and the
    MB that these take.
    """
    config = SampleConfig(
        fanout=compose([]).fanout,
        train_unfinished=False,
        decode=load_tokenizer(tokenizer).decode,
        pad=0,
        shape=None,
    )
    chosen, me, kept = records[:CONVERTED], psutil.Process(), []
    held, began = resident_mb([me]), cpu_s(me)
    for index, record in enumerate(chosen):
        base = make_base_sample(Sample, record, record.group, index)
        kept.append(
            to_slime_samples(base, load_rollout(store, None, record), config, evaluation=False)
        )
    cpu_ms = 1000 * (cpu_s(me) - began) / len(chosen)
    return cpu_ms, (resident_mb([me]) - held) / len(chosen)

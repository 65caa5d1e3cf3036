"""Plan a run on this machine: its processes, threads, memory and disk, and the problems it meets.

Nothing is started or written. The sizes are estimates, the problems are facts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from conf.lora import find_served_lora, find_trained_lora
from conf.schema import Config
from conf.sections.engine import EmbeddedEngineConfig
from conf.sections.training import LocalTrainerConfig
from launch.gpu import (
    FLOAT,
    GpuPlan,
    count_parameters,
    count_state_bytes,
    find_gpu_problems,
    plan_gpu,
    read_shape,
)
from launch.preflight import Problem, find_problems, nearest_existing

MB = 1 << 20

# Peak proportional set sizes (PSS), measured in a run of the tiny policy with torch's CPU build.
_DRIVER_MB = 450
_TRAINING_MB = 450
"""Activations of one microbatch, and memory that the allocator keeps."""
_ENGINE_MB = 280
_GATEWAY_MB = 90
_SANDBOX_MB = {"native": 10, "claude_code": 200, "codex": 150, "mini_swe_agent": 200}
"""By agent program; a plug-in's is taken for a large one."""

_ROLLOUT_KB = 16
"""Store and arrays of one rollout."""

_TINY_PARAMETERS = (3 << 20) // FLOAT
"""Of the policy that comes with agentrl."""


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """One kind of process of the run."""

    name: str
    count: int
    threads: int
    """Compute threads of each."""
    memory_mb: int
    """Of each."""


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """The plan of a run on this machine."""

    cores: int
    processes: tuple[PlannedProcess, ...]
    rollouts: int
    """Training rollouts: steps × tasks × rollouts per task."""
    evaluations: int
    evaluation_rollouts: int
    concurrency: int
    memory_mb: int
    memory_available_mb: int
    disk_mb: int
    disk_free_mb: int
    gpu: GpuPlan | None
    """None: nothing trains on a GPU."""
    problems: tuple[Problem, ...]


def plan_local_run(config: Config, run_dir: Path) -> LocalPlan:
    """Return the plan of a run of ``config`` in ``run_dir``."""
    cores = len(os.sched_getaffinity(0))
    parameters = _count_policy(config)
    weights_mb = _to_mb(parameters * FLOAT)
    processes = tuple(_plan_processes(config, cores, parameters))
    rollouts = (
        (config.run.steps - _supervised_steps(config))
        * config.run.tasks_per_step
        * config.run.rollouts_per_task
    )
    evaluations = _count_evaluations(config)
    evaluation_rollouts = evaluations * config.run.eval_tasks * config.run.eval_attempts
    memory_mb = sum(process.count * process.memory_mb for process in processes)
    checkpoints = config.run.keep_checkpoints + bool(evaluations)  # the best one, too
    checkpoints_mb = checkpoints * _checkpoint_copies(config) * weights_mb
    disk_mb = checkpoints_mb + (rollouts + evaluation_rollouts) * _ROLLOUT_KB // 1024 + 1
    memory_available_mb = psutil.virtual_memory().available // MB
    disk_free_mb = shutil.disk_usage(nearest_existing(run_dir)).free // MB
    gpu = plan_gpu(config)
    problems = [
        *find_problems(config, run_dir),
        *find_gpu_problems(config, gpu),
        *_warn_if_short("memory", memory_mb, memory_available_mb, "lower rollout.concurrency"),
        *_warn_if_short("disk", disk_mb, disk_free_mb, "choose a run.dir with more space"),
    ]
    return LocalPlan(
        cores=cores,
        processes=processes,
        rollouts=rollouts,
        evaluations=evaluations,
        evaluation_rollouts=evaluation_rollouts,
        concurrency=config.rollout.concurrency,
        memory_mb=memory_mb,
        memory_available_mb=memory_available_mb,
        disk_mb=disk_mb,
        disk_free_mb=disk_free_mb,
        gpu=gpu,
        problems=tuple(problems),
    )


def _count_evaluations(config: Config) -> int:
    if not config.run.eval_tasks:
        return 0
    steps, every = config.run.steps, config.run.eval_every
    return len({0, steps, *(range(0, steps, every) if every else ())})


def _count_policy(config: Config) -> int:
    path = config.model.path
    if path is None or not path.is_dir():
        return _TINY_PARAMETERS
    shape = read_shape(path / "config.json")
    return count_parameters(path, tied=shape is not None and shape.tied)


def _to_mb(size: int) -> int:
    return -(-size // MB)


def _checkpoint_copies(config: Config) -> int:
    """Return a checkpoint's size in copies of the weights: themselves and two moments.

    Adapters are nothing beside the weights into which they are merged for an engine.
    """
    if find_trained_lora(config) is None:
        return 3
    return 0 if find_served_lora(config) else 1


def _plan_processes(config: Config, cores: int, parameters: int) -> Iterator[PlannedProcess]:
    trainer, path = config.trainer, config.model.path
    threads, ranks = _threads(config) or cores, _count_devices(config)
    trainer_mb = _TRAINING_MB
    if isinstance(trainer, LocalTrainerConfig):
        states = count_state_bytes(path, parameters, trainer)
        if trainer.shard != "none":  # a process loads the whole policy before it keeps a part
            states = max(states, parameters * FLOAT)
        trainer_mb += _to_mb(states)
    if ranks == 1 and config.run.overlap == "none":
        yield PlannedProcess("driver and trainer", 1, threads, _DRIVER_MB + trainer_mb)
    else:
        yield PlannedProcess("driver", 1, 1, _DRIVER_MB)
        # one process alone trains while rollouts run: half of the cores is theirs
        own = _threads(config) or max(1, cores // max(2, ranks))
        yield PlannedProcess("trainer", ranks, own, _DRIVER_MB + trainer_mb)
    if isinstance(config.engine, EmbeddedEngineConfig):
        # in float32, whatever the checkpoint's type
        engine_mb = _ENGINE_MB + _to_mb(parameters * FLOAT)
        yield PlannedProcess("engine", 1, config.engine.threads or cores, engine_mb)
    yield PlannedProcess("gateway", 1, 1, _GATEWAY_MB)
    if config.sandbox.kind != "e2b":
        yield PlannedProcess(
            "sandbox", config.rollout.concurrency, 1, _SANDBOX_MB.get(config.harness.kind, 200)
        )


def _supervised_steps(config: Config) -> int:
    return config.trainer.sft.steps if isinstance(config.trainer, LocalTrainerConfig) else 0


def _count_devices(config: Config) -> int:
    return config.trainer.devices if isinstance(config.trainer, LocalTrainerConfig) else 1


def _threads(config: Config) -> int:
    return config.trainer.threads if isinstance(config.trainer, LocalTrainerConfig) else 0


def _warn_if_short(what: str, need_mb: int, have_mb: int, fix: str) -> Iterator[Problem]:
    if need_mb > have_mb:
        yield Problem(
            False, f"not enough {what}: about {need_mb} MB needed, {have_mb} MB free; {fix}"
        )

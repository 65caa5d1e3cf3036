"""The services of a campaign: its rollouts', the trainer, its newest checkpoint, the tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.training import LocalTrainerConfig
from runners.concurrency.task_group import task_group
from runners.diagnostics.attempt_progress import AttemptWatch
from runners.engines.contract import ServedEngine
from runners.rollouts.attempt import RolloutTools
from runners.runtime.services import OnServiceExit, Policy, captured_shape, rollout_stack
from runners.store.run_store import RunStore
from runners.tasks.contract import Task
from runners.tasks.datasets import load_tasks
from runners.training import checkpoint
from runners.training.placeholder import pad_token
from runners.trajectory.routing import RoutingShape

if TYPE_CHECKING:
    from runners.training.local import LocalTrainer


@dataclass(frozen=True, slots=True)
class Stack:
    """Everything a campaign uses, running."""

    trainer: LocalTrainer
    engine: ServedEngine
    tools: RolloutTools
    routing: RoutingShape | None
    """What the policy's routing looks like, if it is captured."""
    pad: int
    """The policy's padding token."""
    train_tasks: list[Task]
    held_out_tasks: list[Task]
    version: int
    """Weight version the engine serves: updates made so far."""
    resumed_state: dict[str, Any] | None
    """What the newest checkpoint was saved with, when there is one."""


@asynccontextmanager
async def running_stack(
    config: Config,
    policy: Policy,
    store: RunStore,
    *,
    watch: AttemptWatch,
    on_service_exit: OnServiceExit,
) -> AsyncIterator[Stack]:
    """Start everything and yield it; whatever happens, all of it is ended again."""
    saved = checkpoint.latest(store.run_dir / "checkpoints")
    version = saved.step if saved else 0
    async with AsyncExitStack() as exits:
        async with task_group() as starting:
            rollouts = starting.create_task(
                exits.enter_async_context(
                    rollout_stack(
                        config,
                        store,
                        weights=saved.path if saved else policy.weights,
                        tokenizer=policy.tokenizer,
                        version=version,
                        watch=watch,
                        on_service_exit=on_service_exit,
                    )
                )
            )
            # after the engine: its process imports torch while the trainer's thread does
            trainer = starting.create_task(asyncio.to_thread(_trainer, config, policy, saved))
            loading = starting.create_task(asyncio.to_thread(load_tasks, config))
        tasks = loading.result()
        yield Stack(
            trainer=trainer.result(),
            engine=rollouts.result().engine,
            tools=rollouts.result().tools,
            routing=captured_shape(config, policy.weights),
            pad=pad_token(policy.weights),
            train_tasks=[task for task in tasks if task.split == "train"],
            held_out_tasks=[task for task in tasks if task.split == "held_out"],
            version=version,
            resumed_state=saved.state() if saved else None,
        )


def _trainer(config: Config, policy: Policy, saved: checkpoint.Checkpoint | None) -> LocalTrainer:
    if not isinstance(config.trainer, LocalTrainerConfig):
        raise ConfigError(
            [f"trainer={config.trainer.kind} trains on a cluster: start it with `agentrl launch`"]
        )
    from runners.training.local import LocalTrainer

    trainer = LocalTrainer(
        config.trainer,
        weights=policy.weights,
        temperature=config.sampling.temperature,
        seed=config.seed,
        routing=config.routing_replay,
    )
    if saved is not None:
        checkpoint.restore(trainer, saved)
    return trainer

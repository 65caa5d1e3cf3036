"""A run directory and slime's side of a job, as tests of the plug use them."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.testing.completions import Completion, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose, to_json
from runners.campaigns.slime import worker
from runners.campaigns.slime.data_source import RunDataSource
from runners.campaigns.slime.entry_points import evaluate, generate_rollout, post_process_rewards
from runners.campaigns.slime.loop import run_in_loop
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from runners.tasks.sets.task_sets import load_tasks
from tests.fakes.sglang_router import Router
from tests.fakes.slime_rollout import Generated, make_train_data, run_rollout_function
from tests.fakes.tiny_model import write_tiny_model

SAYS = spoken([{"type": "text", "text": "I give up."}])
SMALL = (
    *("run.steps=1", "run.tasks_per_step=2", "run.rollouts_per_task=2", "run.eval_tasks=2"),
    *("task.train_tasks=2", "task.held_out_tasks=2", "rollout.attempts=1"),
    *("rollout.breaker=50", "trainer.minibatches=1", "rollout.limits.engine_attempts=1"),
)


@dataclass
class Job:
    """The parts of a slime job that rollouts use."""

    args: Namespace
    engine: ScriptedEngine
    router: Router
    run_dir: Path
    tasks: list[str]
    first_rollout: int = 0
    """Steps in slime's checkpoint."""

    def source(self) -> RunDataSource:
        source = RunDataSource(self.args)
        source.load(self.first_rollout - 1)
        return source

    def hand_over(self, groups: list[list[Generated]]) -> dict[str, list[Any]]:
        """Return a batch's training columns, as slime makes them."""
        return make_train_data(self.args, groups, post_process_rewards)

    async def roll_out(self, step: int) -> list[list[Generated]]:
        """Return the groups of a step (from 1), as slime's RolloutManager gets them: it blocks."""
        return await asyncio.to_thread(
            run_rollout_function, self.args, step - 1, self.source(), generate_rollout
        )

    async def train(self, step: int) -> dict[str, list[Any]]:
        """Roll a step out and return its training columns."""
        return await asyncio.to_thread(self.hand_over, await self.roll_out(step))

    async def evaluate(self, slime_rollout: int) -> dict[str, Any]:
        found: dict[str, Any] = await asyncio.to_thread(
            evaluate, self.args, slime_rollout, self.source(), evaluation=True
        )
        return found

    async def close(self) -> None:
        await asyncio.to_thread(lambda: run_in_loop(worker.close(self.run_dir)))

    def store(self) -> RunStore:
        return RunStore.open(self.run_dir, read_only=True)


def write_model(directory: Path) -> Path:
    """Write a tiny model and its tokenizer."""
    write_tiny_tokenizer(directory)
    return write_tiny_model(directory, vocab_size=tiny_tokenizer().get_vocab_size())


def write_run(run_dir: Path, model: Path, *overrides: str) -> list[str]:
    """Write a run directory as a launcher does; returns the ids of its training tasks."""
    config = compose([f"model.path='{model}'", f"model.tokenizer='{model}'", *SMALL, *overrides])
    run_dir.mkdir()
    (run_dir / "config.json").write_text(to_json(config))
    tasks = load_tasks(config)
    return [task.id for task in tasks if task.split == "train"]


@asynccontextmanager
async def running_job(run_dir: Path, model: Path, *overrides: str) -> AsyncIterator[Job]:
    tasks = write_run(run_dir, model, *overrides)
    async with ScriptedEngine() as engine, Router(engine) as router:
        host, port = router.address
        args = Namespace(
            sglang_router_ip=host,
            sglang_router_port=port,
            hf_checkpoint=str(model),
            rollout_batch_size=2,
            n_samples_per_prompt=2,
            use_rollout_routing_replay=False,
            agentrl_run_dir=str(run_dir),
        )
        engine.always = Completion(SAYS)
        job = Job(args, engine, router, run_dir, tasks)
        yield job
        await job.close()

"""A stored rollout of a real agent program, as a run leaves it: its turns, its record, its task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from conf.compose import compose, to_json
from conf.schema import Config
from runners.records.outcome import Outcome, Stage
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.rollouts.contract import HarnessContext
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxSpec
from runners.tasks.sets.task_sets import load_tasks
from tests.fakes.running_gateway import running_gateway
from tests.runners.rollouts.harnesses.real_agent import MAIN, SeveralThreads

ROLLOUT = "train-000000-000-00"
SMALL = ["task.train_tasks=1", "task.held_out_tasks=1", "run.eval_tasks=1", "run.tasks_per_step=1"]


def run_config(tmp_path: Path, *overrides: str) -> Config:
    """Return a run's configuration, whose tokenizer is there."""
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    room = ["model.max_context_tokens=60000", "engine.cache_tokens=60000"]
    sampled = "sampling.max_new_tokens=4096"
    return compose([f"model.tokenizer='{tokenizer}'", *SMALL, *room, sampled, *overrides])


async def record(
    config: Config, run_dir: Path, script: Sequence[str], **subs: Sequence[str]
) -> RolloutRecord:
    """Let the program of ``config`` work on its first task, and store it in ``run_dir``; ``subs``
    are the scripts of sub-agents, by a word of their tasks.
    """
    RunStore.create(run_dir, json.loads(to_json(config))).close()
    task = load_tasks(config)[0]
    harness = make_harness(config.harness, config.scenario)
    backend = await asyncio.to_thread(make_backend, config.sandbox, run_dir / "sandboxes")
    session_id = f"{ROLLOUT}-a0"
    assert config.model.tokenizer is not None
    async with (
        SeveralThreads({MAIN: script, **subs}) as engine,
        running_gateway(
            engine.url,
            config.model.tokenizer,
            run_dir,
            make_run=False,
            max_context_tokens=config.model.max_context_tokens,
        ) as gateway,
    ):
        session = await gateway.session(session_id)
        spec = SandboxSpec(
            session_id,
            task.repo,
            "gateway",
            gateway_control=Path(gateway.control),
            gateway_url=gateway.url,
            session_key=session.key,
            mounts=harness.mounts(),
        )
        sandbox = await backend.create(spec)
        context = HarnessContext(task.problem_statement, session.key, "policy", 60)
        result = await harness.run(sandbox, context)
        await sandbox.close()
        await session.finish()
    await backend.close()
    with RunStore.open(run_dir) as store:
        record = RolloutRecord(
            rollout_id=ROLLOUT,
            attempt=0,
            step=0,
            split="train",
            group=0,
            member=0,
            task_id=task.id,
            session_id=session_id,
            counts=True,
            outcome=Outcome(result.code, Stage.HARNESS, result.final_message),
            reward=None,
            solved=None,
            advantage=None,
            turns=len(store.turns(session_id)),
            sampled_tokens=0,
            trained_tokens=0,
            final_message=result.final_message,
            patch="",
            verdict=None,
            timings={},
            extra={"harness": result.facts},
        )
        store.put_rollout(record)
    return record

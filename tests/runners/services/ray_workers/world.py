"""Attempts with everything real but engine and Ray, in the driver's process or in a worker's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentrl.testing.completions import Completion, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.schema import Config
from conf.sections.executor import RayExecutorConfig
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.rollouts.attempt import execute_here
from runners.rollouts.contract import AttemptContext, AttemptResult, Execute, RolloutSpec
from runners.rollouts.harnesses.registry import make_harness
from runners.rollouts.pool import Pool
from runners.rollouts.reward import make_reward
from runners.sandboxes.backends import make_backend
from runners.sandboxes.wrappers import RegisteredBackend
from runners.services.faults.wiring import driver_faults
from runners.services.ray_workers.executor import RayExecutor
from runners.services.ray_workers.node_worker import SILENCE_S
from runners.services.ray_workers.worker import Worker
from runners.system.concurrency.limits import Admission, TokenBucket
from runners.system.diagnostics.attempt_progress import AttemptWatch
from runners.system.processes.ledger import Ledger, StoreRecorder
from runners.tasks.contract import Task
from runners.tasks.grading.grading import make_grader
from tests.fakes.nodes_without_ray import OneNode
from tests.fakes.running_gateway import Gateway, running_gateway
from tests.runners.tasks.example_repositories import FIX, make_task

Where = Literal["here", "node"]
SHORT = [
    "rollout.deadlines={boot_s:20,harness_s:30,turn_s:20,grade_s:20,teardown_s:5,guard_s:200}",
    "sandbox.processes=32",
]


def use(name: str, **arguments: str) -> Completion:
    """Return an answer that calls a tool."""
    return Completion(spoken([{"type": "tool_use", "name": name, "input": arguments}]))


SOLUTION = (
    use("Bash", command=f"cat > calc/add.py <<'END'\n{FIX}END"),
    use("Submit", message="done"),
)


def ray_section(*overrides: str) -> RayExecutorConfig:
    """Return the configuration of ``executor=ray``."""
    section = compose(["executor=ray", *overrides]).executor
    assert isinstance(section, RayExecutorConfig)
    return section


@dataclass
class World:
    """Everything that attempts need, and the records of those that are done."""

    config: Config
    engine: ScriptedEngine
    gateway: Gateway
    store: RunStore
    ledger: Ledger
    context: AttemptContext
    execute: Execute
    task: Task
    node: OneNode | None
    """The node on which they run; None: in this process."""
    done: list[RolloutRecord]

    def spec(self, member: int = 0) -> RolloutSpec:
        """Return a rollout of the task."""
        name = f"train-000001-000-{member:02d}"
        return RolloutSpec(name, "train", 1, 0, member, self.task, member, 1.0)

    async def attempt(self, number: int = 0) -> AttemptResult:
        """Run one attempt."""
        return await self.execute(self.context, self.spec(), number, 0.5)

    def pool(self, *, attempts: int = 3, breaker: int = 100) -> Pool:
        """Return a pool of four rollouts at once."""
        return Pool(
            self.context,
            self.store,
            self.execute,
            admission=Admission(4, adaptive=False),
            attempts=attempts,
            breaker=breaker,
            draining=asyncio.Event(),
            on_done=self.done.append,
        )


@asynccontextmanager
async def world(
    where: Where,
    tmp_path: Path,
    tokenizer: Path,
    *overrides: str,
    silence_s: float = SILENCE_S,
    section: RayExecutorConfig | None = None,
    make_worker: Callable[[str], Any] = Worker,
) -> AsyncIterator[World]:
    """Start everything that attempts need."""
    config = compose([*SHORT, *overrides])
    async with AsyncExitStack() as exits:
        engine = await exits.enter_async_context(ScriptedEngine())
        gateway = await exits.enter_async_context(
            running_gateway(engine.url, tokenizer, tmp_path / "run")
        )
        store = exits.enter_context(RunStore.open(tmp_path / "run"))
        ledger = Ledger(store)
        backend = await asyncio.to_thread(make_backend, config.sandbox, tmp_path / "sandboxes")
        exits.push_async_callback(backend.close)
        faults = exits.enter_context(driver_faults(config.faults, store))
        registered = faults.wrap_backend(RegisteredBackend(backend, StoreRecorder(store, ledger)))
        task = make_task(tmp_path / "task")

        async def ready(task: Task) -> Task:
            return task

        context = faults.wrap_context(
            AttemptContext(
                backend=registered,
                harness=make_harness(config.harness, config.scenario),
                grader=make_grader(registered, config, ready, tmp_path / "run"),
                gateway=gateway.admin,
                gateway_url=gateway.url,
                gateway_control=Path(gateway.control),
                deadlines=config.rollout.deadlines,
                reward=make_reward(config.reward),
                scenario="linear",
                sandbox_starts=TokenBucket(None),
                watch=AttemptWatch(),
                ready=ready,
            )
        )
        recorder = StoreRecorder(faults.wrap_store(store), ledger)
        execute = execute_here(recorder)
        node = None
        if where == "node":
            node = OneNode(make_worker)
            exits.push_async_callback(node.stop)
            executor = RayExecutor(
                section or ray_section(), node, store, ledger, silence_s=silence_s
            )
            exits.push_async_callback(executor.close)
            await executor.start(config, gateway.admin, context, recorder)
            execute = executor
        yield World(config, engine, gateway, store, ledger, context, execute, task, node, [])

"""Build the parts of a run with a fault plan around them: real ones, or fakes of the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.fault_table import Boundary
from conf.sections.faults import FaultRule, FaultWhen
from runners.engines.client import HttpEngine
from runners.engines.contract import Engine, SamplingParams
from runners.gateway.client import GatewayAdmin
from runners.observe.figures.metrics import MetricsWriter
from runners.records.store.run_store import RunStore
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.services.faults.boundaries import (
    wrap_backend,
    wrap_engine,
    wrap_gateway,
    wrap_grader,
    wrap_metrics,
    wrap_store,
    wrap_updates,
)
from runners.services.faults.plan import FaultPlan, Injection
from runners.tasks.contract import Patch, Task
from runners.tasks.grading import RolloutResult
from runners.tasks.patches.workspace_diff import diff_workspace
from tests.fakes.records import a_rollout
from tests.fakes.rollout_parts import FolderBackend, ListedGrader
from tests.fakes.running_gateway import running_gateway
from tests.runners.tasks.example_repositories import patch_of

ROLLOUT = "train-000001-000-00"
SESSION = f"{ROLLOUT}-a0"
RESULT = RolloutResult.of_patch(patch_of(b""))
Hit = Callable[[], Awaitable[Any]]
"""Makes the call of a boundary once."""


async def capture_patch(task: Task, sandbox: Sandbox) -> Patch:
    """Take the patch out of a sandbox."""
    async with sandbox.on_host() as workspace:
        return diff_workspace(task, workspace)


def make_plan(where: Boundary, what: str, *, k: int | None = None, **more: Any) -> FaultPlan:
    """Return a plan of one rule; ``more``: its ``seconds`` or ``status``."""
    if what in ("delay", "clock_jump"):
        more.setdefault("seconds", 0.01)
    if what == "status":
        more.setdefault("status", 503)
    rule = FaultRule.model_validate(
        {"where": where, "what": what, "when": FaultWhen(k=k), "seconds": None, **more}
    )
    return FaultPlan(0, [rule])


@dataclass
class RunParts:
    """The parts of a run, each wrapped with a plan on request."""

    tmp_path: Path
    tokenizer: Path
    task: Task
    sandboxes: LocalBackend
    store: RunStore

    def injected(self) -> list[tuple[str, str, str, int]]:
        """Return the injected faults of the store: where, what, rollout, k."""
        return [
            (event.data["where"], event.data["what"], event.data["rollout_id"], event.data["k"])
            for event in self.store.events("fault")
        ]

    def spec(self, *, grading: bool = False) -> SandboxSpec:
        """Return the spec of the attempt's sandbox, or of its grader's."""
        if grading:
            return SandboxSpec(f"{SESSION}-grade", self.task.repo, "none")
        return SandboxSpec(SESSION, self.task.repo, "gateway", "http://127.0.0.1:9", Path("none"))

    def folders(self) -> FolderBackend:
        """Return a backend whose sandboxes are plain folders."""
        root = self.tmp_path / "folders"
        root.mkdir(exist_ok=True)
        return FolderBackend(root)

    def backend(
        self,
        plan: FaultPlan,
        real: SandboxBackend | None = None,
        turns: Callable[[str], int] = lambda name: 0,
    ) -> SandboxBackend:
        """Return a wrapped backend; ``turns`` counts the turns of a session."""

        async def count_turns(name: str) -> int:
            return turns(name)

        return wrap_backend(real or self.sandboxes, Injection(plan, self.store), count_turns)

    @asynccontextmanager
    async def admin(self, plan: FaultPlan) -> AsyncIterator[GatewayAdmin]:
        """Yield a wrapped client of a running gateway."""
        async with (
            ScriptedEngine() as engine,
            running_gateway(
                engine.url, self.tokenizer, self.tmp_path / "run", make_run=False
            ) as gateway,
        ):
            yield wrap_gateway(gateway.admin, Injection(plan, self.store))

    @asynccontextmanager
    async def engine(self, plan: FaultPlan) -> AsyncIterator[tuple[Engine, ScriptedEngine]]:
        """Yield a wrapped client of a scripted engine, and the engine."""
        async with ScriptedEngine() as scripted:
            scripted.always = Completion("I am done.<|im_end|>")
            client = HttpEngine(scripted.url)
            try:
                yield wrap_engine(client, Injection(plan, self.store)), scripted
            finally:
                await client.close()

    @asynccontextmanager
    async def weights(self, plan: FaultPlan) -> AsyncIterator[tuple[HttpEngine, ScriptedEngine]]:
        """Yield a driver's wrapped client of a scripted engine, and the engine."""
        async with ScriptedEngine() as scripted:
            client = HttpEngine(scripted.url)
            try:
                yield wrap_updates(client, Injection(plan, self.store)), scripted
            finally:
                await client.close()

    @asynccontextmanager
    async def boundary(self, where: Boundary, plan: FaultPlan) -> AsyncIterator[Hit]:
        """Yield the call of a boundary, with a plan around it."""
        injection = Injection(plan, self.store)
        if where in ("session", "finish"):
            async with self.admin(plan) as admin:
                if where == "session":
                    yield lambda: admin.create_session(SESSION)
                else:
                    await admin.create_session(SESSION)
                    yield lambda: admin.finish(SESSION)
        elif where == "sandbox_boot":
            yield lambda: self.backend(plan, self.folders()).create(self.spec())
        elif where == "exec":
            sandbox = await self.backend(plan).create(self.spec())
            try:
                yield lambda: sandbox.run(["python", "-c", "print(1)"], deadline_s=20)
            finally:
                await sandbox.close()
        elif where == "teardown":
            sandbox = await self.backend(plan, self.folders()).create(self.spec())
            yield sandbox.close
        elif where in ("turn", "subagent", "compaction"):
            branch = "main" if where == "turn" else where
            async with self.engine(plan) as (engine, _):
                params = SamplingParams(max_new_tokens=50)
                yield lambda: engine.generate([1], params, rid=f"{SESSION}:{branch}:0-001")
        elif where == "weights":
            async with self.weights(plan) as (client, _):
                yield lambda: client.update_weights(self.tmp_path, 3)
        elif where == "patch":
            sandbox = await self.backend(plan).create(self.spec())
            try:
                yield lambda: capture_patch(self.task, sandbox)
            finally:
                await sandbox.close()
        elif where == "grade":
            grader = wrap_grader(ListedGrader(), injection)
            name = f"{SESSION}-grade"
            yield lambda: grader.grade(self.task, RESULT, name=name, deadline_s=5)
        elif where == "dump":
            run_dir = self.store.run_dir
            metrics = wrap_metrics(MetricsWriter(run_dir, tensorboard=False), injection, run_dir)
            yield make_async(lambda: metrics.write({"step": 1}))
        else:
            store = wrap_store(self.store, injection)
            record = a_rollout(ROLLOUT, counts=where == "deliver")
            yield make_async(lambda: store.put_rollout(record))


def make_async(write: Callable[[], None]) -> Hit:
    """Return a write of the driver as a coroutine function."""

    async def hit() -> None:
        write()

    return hit

"""Every boundary with a fault plan around it, ready to be crossed: real parts, or fakes that keep
their contracts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.fault_table import Boundary
from conf.sections.faults import FaultRule, FaultWhen
from runners.engines.client import HttpEngine
from runners.engines.contract import SamplingParams
from runners.faults.engine import FaultyEngine, FaultyUpdates
from runners.faults.gateway import FaultyAdmin
from runners.faults.grader import FaultyGrader
from runners.faults.injection import Injection
from runners.faults.plan import Fault, FaultPlan
from runners.faults.sandbox import FaultyBackend
from runners.faults.store import FaultyMetrics, FaultyStore
from runners.observe.metrics import MetricsWriter
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.store.run_store import RunStore
from runners.tasks.contract import Patch, Task
from runners.tasks.patch import diff_workspace
from tests.fakes.rollout_parts import FolderBackend, ListedGrader
from tests.fakes.running_gateway import running_gateway
from tests.fakes.scripted_engine import Completion, ScriptedEngine
from tests.runners.export.records import a_rollout

ROLLOUT = "train-000001-000-00"
SESSION = f"{ROLLOUT}-a0"
PATCH = Patch(diff=b"", sha256="", files=(), tampered=())
Cross = Callable[[], Awaitable[Any]]


async def captured(task: Task, sandbox: Sandbox) -> Patch:
    """Take the patch out of a sandbox."""
    async with sandbox.on_host() as workspace:
        return await diff_workspace(task, workspace)


def plan_of(where: Boundary, what: str, *, k: int | None = None, **more: Any) -> FaultPlan:
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
class Places:
    """What boundaries are made of."""

    tmp_path: Path
    tokenizer: Path
    task: Task
    sandboxes: LocalBackend
    store: RunStore

    def injected(self) -> list[tuple[str, str, str, int]]:
        """Return what the store says was injected: where, what, rollout, k."""
        return [
            (event.data["where"], event.data["what"], event.data["rollout_id"], event.data["k"])
            for event in self.store.events("fault")
        ]

    def spec(self, *, grading: bool = False) -> SandboxSpec:
        """Return what a sandbox of the attempt, or its grader's, is made from."""
        if grading:
            return SandboxSpec(f"{SESSION}-grade", self.task.repo, "none")
        return SandboxSpec(SESSION, self.task.repo, "gateway", "http://127.0.0.1:9", Path("none"))

    def folders(self) -> FolderBackend:
        """Return a backend of mere folders."""
        root = self.tmp_path / "folders"
        root.mkdir(exist_ok=True)
        return FolderBackend(root)

    def backend(
        self,
        plan: FaultPlan,
        real: SandboxBackend | None = None,
        turns: Callable[[str], int] = lambda name: 0,
    ) -> FaultyBackend:
        """Return a faulty backend around a real one."""

        async def taken(name: str) -> int:
            return turns(name)

        return FaultyBackend(real or self.sandboxes, Injection(plan, self.store), taken)

    @asynccontextmanager
    async def admin(self, plan: FaultPlan) -> AsyncIterator[FaultyAdmin]:
        """Yield a faulty client of a running gateway; ``_real`` is the other one."""
        async with (
            ScriptedEngine() as engine,
            running_gateway(
                engine.url, self.tokenizer, self.tmp_path / "run", make_run=False
            ) as gateway,
        ):
            yield FaultyAdmin(gateway.admin, Injection(plan, self.store))

    @asynccontextmanager
    async def engine(self, plan: FaultPlan) -> AsyncIterator[tuple[FaultyEngine, ScriptedEngine]]:
        """Yield a faulty engine around a client of a scripted one, and that one."""

        async def keep(fault: Fault) -> None:
            self.store.event("fault", fault.event())

        async with ScriptedEngine() as scripted:
            scripted.always = Completion("I am done.<|im_end|>")
            client = HttpEngine(scripted.url)
            try:
                yield FaultyEngine(client, plan, keep), scripted
            finally:
                await client.close()

    @asynccontextmanager
    async def weights(self, plan: FaultPlan) -> AsyncIterator[tuple[HttpEngine, ScriptedEngine]]:
        """Yield a driver's faulty client of a scripted engine, and the engine."""
        async with ScriptedEngine() as scripted:
            client = HttpEngine(scripted.url)
            try:
                yield FaultyUpdates(client, Injection(plan, self.store)), scripted
            finally:
                await client.close()

    @asynccontextmanager
    async def boundary(self, where: Boundary, plan: FaultPlan) -> AsyncIterator[Cross]:
        """Yield what crosses a boundary once, with a plan around it."""
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
                yield lambda: captured(self.task, sandbox)
            finally:
                await sandbox.close()
        elif where == "grade":
            grader = FaultyGrader(ListedGrader(), injection)
            name = f"{SESSION}-grade"
            yield lambda: grader.grade(self.task, PATCH, name=name, deadline_s=5)
        else:
            with self._writes(where, injection) as cross:
                yield cross

    def _writes(self, where: Boundary, injection: Injection) -> _Writes:
        return _Writes(self, where, injection)


class _Writes:
    """A context that yields what makes one of the driver's writes."""

    def __init__(self, places: Places, where: Boundary, injection: Injection) -> None:
        self._places = places
        self._where = where
        self._injection = injection
        self._store = FaultyStore.over(places.store, injection)

    def __enter__(self) -> Cross:
        run_dir = self._places.store.run_dir
        metrics = FaultyMetrics(MetricsWriter(run_dir, tensorboard=False), self._injection, run_dir)
        record = a_rollout(ROLLOUT, counts=self._where == "deliver")

        async def write() -> None:
            if self._where == "dump":
                metrics.write({"step": 1})
            else:
                self._store.put_rollout(record)

        return write

    def __exit__(self, *_: object) -> None:
        self._store.close()

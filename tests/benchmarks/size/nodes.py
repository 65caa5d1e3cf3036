"""The nodes of a cluster and their engine, in one process: an actor of a Ray on this machine.

Each node's worker is the real one and is called by the driver as on a cluster; its sandboxes are
empty, its agents play recorded traffic, its grader knows the verdict.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import ray
from tokenizers import Tokenizer

from agentrl.testing.scripted_engine import ScriptedEngine
from conf.schema import Config
from runners.gateway.client import GatewayAdmin
from runners.gateway.http.connections import raise_descriptor_limit
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import AttemptContext, HarnessContext, HarnessResult
from runners.rollouts.reward import make_reward
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.wrappers import RegisteredBackend
from runners.services.ray_workers.cluster import RayWorker
from runners.services.ray_workers.node_worker import NodeInfo
from runners.services.ray_workers.relay import Relay
from runners.services.ray_workers.worker import Worker, WorkerSettings
from runners.system.concurrency.limits import TokenBucket
from runners.system.diagnostics.attempt_progress import AttemptWatch
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.grading.graders.verdicts import make_verdict
from tests.benchmarks.size.agent import ANSWER, Agent
from tests.fakes.rollout_parts import FolderBackend, PatchGrader

LOG = b"tests/test_calc.py::test_add PASSED\n" * 170
"""Of a grading: 6 kB, with the patch that these attempts lack."""
FORGET_S = 1.0


@dataclass
class EmptySandbox:
    """A sandbox in which nothing runs."""

    spec: SandboxSpec
    workdir: str = "/app"
    gateway_url: str | None = None

    def egress_attempts(self) -> tuple[()]:
        """Return none."""
        return ()

    async def close(self) -> None:
        """Have nothing to remove."""


class EmptyBackend(FolderBackend):
    """Makes sandboxes without files."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make one at once."""
        made: Any = EmptySandbox(spec, gateway_url=spec.gateway_url)
        sandbox: Sandbox = made
        return sandbox


class PlayingHarness:
    """Plays an agent against the gateway."""

    def __init__(self, agent: Agent, http: aiohttp.ClientSession) -> None:
        self._agent = agent
        self._http = http
        self._runs = 0

    def mounts(self) -> dict[str, Path]:
        """Need nothing."""
        return {}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Play it to its end."""
        self._runs += 1
        assert sandbox.gateway_url is not None
        await self._agent.play(
            self._http, sandbox.gateway_url, context.api_key, context.prompt, self._runs
        )
        return HarnessResult(OutcomeCode.POLICY_FINISHED, "done", None, 0, 1.0, "")


class KnowingGrader(PatchGrader):
    """Solves every second rollout, so that each group has a signal."""

    def __init__(self) -> None:
        self._graded = 0

    async def grade_end_state(
        self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float
    ) -> Verdict:
        """Give a verdict with a log as long as real ones."""
        self._graded += 1
        kind = VerdictKind.SOLVED if self._graded % 2 else VerdictKind.UNSOLVED
        return make_verdict(task, kind, "known", log=LOG)


def make_context(
    config: Config, gateway: GatewayAdmin, control: Path | None, harness: PlayingHarness | None
) -> AttemptContext:
    """Return the context of attempts; the driver's, without a harness, runs none."""
    made: Any = harness
    backend: SandboxBackend = EmptyBackend()
    return AttemptContext(
        backend=backend,
        harness=made,
        grader=KnowingGrader(),
        gateway=gateway,
        gateway_url=None,
        gateway_control=control,
        deadlines=config.rollout.deadlines,
        reward=make_reward(config.reward),
        scenario=config.scenario.kind,
        sandbox_starts=TokenBucket(None),
        watch=AttemptWatch(),
    )


class PlayingWorker(Worker):
    """A worker whose sandboxes, agents and graders cost nothing."""

    def __init__(self, node: str, harness: PlayingHarness) -> None:
        super().__init__(node)
        self._harness = harness

    async def prepare(self, settings: WorkerSettings) -> dict[str, str]:
        """Get ready without sandboxes."""
        gateway = GatewayAdmin(settings.gateway_urls, settings.admin_key, deadline_s=3600)
        self._exits.push_async_callback(gateway.close)
        root = Path(self._exits.enter_context(tempfile.TemporaryDirectory()))
        self._relay = Relay(settings.gateway_urls, root)
        made = make_context(settings.config, gateway, root, self._harness)
        registered = RegisteredBackend(made.backend, self._recorder)
        self._context = replace(made, backend=registered, watch=self._watch)
        return {}


class Nodes:
    """The workers of all nodes, and the engine: one actor of Ray."""

    def __init__(self, turns: int, tokenizer: str) -> None:
        self._turns = turns
        self._tokenizer = tokenizer
        self._exits = AsyncExitStack()
        self._workers: dict[str, Worker] = {}
        self._harness: PlayingHarness
        self._forgetting: asyncio.Task[None]

    async def start(self) -> str:
        """Start the engine and return its URL."""
        raise_descriptor_limit()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        http = await self._exits.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        )
        self._harness = PlayingHarness(Agent(self._turns), http)
        engine = ScriptedEngine(Tokenizer.from_file(self._tokenizer))
        await self._exits.enter_async_context(engine)
        engine.always = ANSWER
        self._forgetting = asyncio.create_task(_forget(engine))
        return engine.url

    async def call(self, node: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of a node's worker."""
        if node not in self._workers:
            self._workers[node] = PlayingWorker(node, self._harness)
        return await getattr(self._workers[node], method)(*arguments)


async def _forget(engine: ScriptedEngine) -> None:
    """Forget what the engine was asked: nobody will look."""
    while True:
        await asyncio.sleep(FORGET_S)
        for kept in (engine.seen.calls, engine.seen.requests, engine.seen.answered):
            kept.clear()
        engine.seen.began.clear()


@dataclass(frozen=True, slots=True)
class HostedWorker:
    """One node's worker in the actor of all of them."""

    nodes: RayWorker
    name: str

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of it."""
        return await self.nodes.call("call", self.name, method, arguments)

    def kill(self) -> None:
        """Leave it: it ends with the actor."""


@dataclass(frozen=True, slots=True)
class HostedNodes:
    """A cluster whose nodes are all in one actor."""

    actor: RayWorker
    count: int
    address: str = "127.0.0.1"

    async def nodes(self) -> list[NodeInfo]:
        """Return all of them."""
        names = [f"node/{number:02}" for number in range(self.count)]
        return [NodeInfo(name, name, self.address) for name in names]

    def start_worker(self, node: NodeInfo) -> HostedWorker:
        """Return a node's worker, which its first call makes."""
        return HostedWorker(self.actor, node.name)


def start_nodes(load_turns: int, tokenizer: Path, calls: int) -> RayWorker:
    """Start a Ray of one process for the nodes; ``calls`` of their workers may be in progress."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    made = ray.remote(Nodes).options(max_concurrency=calls)
    return RayWorker(made.remote(load_turns, f"{tokenizer}/tokenizer.json"))

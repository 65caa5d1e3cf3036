"""The nodes of a cluster and their engine, in one process: ``python -m …``, a service.

Each node's worker is the real one and calls the driver as on a cluster; its sandboxes are empty,
its agents play recorded traffic, its grader knows the verdict. The place of Ray is taken by a
server with the functions that the driver calls.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from conf.schema import Config
from runners.concurrency.limits import TokenBucket
from runners.diagnostics.attempt_progress import AttemptWatch
from runners.gateway.client import GatewayAdmin
from runners.gateway.connections import raise_descriptor_limit
from runners.harnesses.contract import HarnessContext, HarnessResult
from runners.processes.service import announce, receive_settings, wait_for_parent_exit
from runners.ray_workers.json_http import Handler, JsonServer
from runners.ray_workers.relay import Relay
from runners.ray_workers.wire import WorkerSettings
from runners.ray_workers.worker import Worker
from runners.rollouts.context import AttemptContext
from runners.rollouts.reward import make_reward
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxSpec
from runners.sandboxes.wrappers import RegisteredBackend
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.graders.verdicts import make_verdict
from runners.testing.scripted_engine import ScriptedEngine
from runners.trajectory.outcome import OutcomeCode
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
    config: Config, gateway: GatewayAdmin, url: str, control: Path, harness: PlayingHarness | None
) -> AttemptContext:
    """Return the context of attempts; the driver's, without a harness, runs none."""
    made: Any = harness
    backend: SandboxBackend = EmptyBackend()
    return AttemptContext(
        backend=backend,
        harness=made,
        grader=KnowingGrader(),
        gateway=gateway,
        gateway_url=url,
        gateway_control=control,
        deadlines=config.rollout.deadlines,
        reward=make_reward(config.reward),
        scenario=config.scenario.kind,
        sandbox_starts=TokenBucket(None),
        watch=AttemptWatch(),
    )


class NodeWorker(Worker):
    """A worker whose sandboxes, agents and graders cost nothing."""

    def __init__(self, harness: PlayingHarness) -> None:
        super().__init__()
        self._harness = harness

    async def _prepare(self, settings: WorkerSettings) -> dict[str, str]:
        gateway = GatewayAdmin(settings.gateway_url, settings.admin_key, deadline_s=3600)
        self._exits.push_async_callback(gateway.close)
        root = Path(self._exits.enter_context(tempfile.TemporaryDirectory()))
        self._relay = Relay(settings.gateway_url, root)
        url = settings.sandbox_gateway_url
        made = make_context(settings.config, gateway, url, root, self._harness)
        registered = RegisteredBackend(made.backend, self._recorder)
        self._context = replace(made, backend=registered, watch=self._watch)
        return {}


class Nodes:
    """So many nodes, as the process that speaks Ray serves them."""

    def __init__(self, count: int, harness: PlayingHarness) -> None:
        self._names = [f"node/{number:02}" for number in range(count)]
        self._harness = harness
        self._workers: dict[str, Worker] = {}
        self.handlers: Mapping[str, Handler] = {
            "nodes": self._list,
            "run": self._run,
            "close": self._close,
        }

    async def _list(self, *_: object) -> list[dict[str, str]]:
        return [{"node_id": name, "name": name, "address": "127.0.0.1"} for name in self._names]

    async def _run(self, _: object, body: Mapping[str, str]) -> dict[str, Any] | None:
        self._workers[body["node"]] = worker = NodeWorker(self._harness)
        return await worker.run(body["url"], body["token"], body["node"])

    async def _close(self, *_: object) -> list[str]:
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))
        return list(self._workers)


async def serve(nodes: int, turns: int, tokenizer: str) -> None:
    """Serve until the driver is gone."""
    raise_descriptor_limit()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as http,
        ScriptedEngine(Tokenizer.from_file(tokenizer)) as engine,
    ):
        engine.always = ANSWER
        placed = Nodes(nodes, PlayingHarness(Agent(turns), http))
        server = JsonServer({"token": None}, placed.handlers)
        port = await server.start("127.0.0.1")
        announce(
            {
                "engine": engine.url,
                "address": "127.0.0.1",
                "url": f"http://127.0.0.1:{port}",
                "token": "token",
            }
        )
        gone = asyncio.ensure_future(wait_for_parent_exit())
        while not (await asyncio.wait([gone], timeout=FORGET_S))[0]:
            engine.seen.calls.clear()
            engine.seen.requests.clear()
            engine.seen.began.clear()
            engine.seen.answered.clear()
        await server.close()


def main() -> None:
    """Serve as the settings say."""
    settings = receive_settings()
    asyncio.run(serve(settings["nodes"], settings["turns"], settings["tokenizer"]))


if __name__ == "__main__":
    main()

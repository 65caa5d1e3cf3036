"""Run attempts on a node of a cluster, in this node's sandboxes: an asynchronous actor of Ray.

Invariant: nothing is stored here: what must not be lost is durable with the driver before an
attempt goes on (``remote_recorder``). The driver calls a worker, never a worker the driver, so a
node needs to reach only Ray and the gateway. Nothing here imports Ray, which merely runs it.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from conf.cache import cache_root
from conf.schema import Config
from runners.gateway.client import GatewayAdmin
from runners.records import ids
from runners.rollouts.attempt import Attempt
from runners.rollouts.contract import AttemptContext, AttemptResult, RolloutSpec
from runners.rollouts.harnesses.registry import make_harness
from runners.rollouts.reward import make_reward
from runners.sandboxes.backends import make_backend
from runners.sandboxes.wrappers import RegisteredBackend
from runners.services.faults.wiring import worker_faults
from runners.services.ray_workers.errors import ExecutorError
from runners.services.ray_workers.relay import Relay
from runners.services.ray_workers.remote_recorder import RecorderCall, RemoteRecorder
from runners.services.ray_workers.repository_cache import RepositoryCache
from runners.system.concurrency import TokenBucket
from runners.system.diagnostics import AttemptWatch
from runners.system.processes import PREFIX, is_stale, make_unique_name
from runners.tasks.contract import CaptureLimits
from runners.tasks.grading import make_grader
from runners.tasks.repositories.task_repositories import TaskRepositories

POLL_S = 1.0
"""Time after which ``poll`` returns at latest."""
SHUTDOWN_GRACE_S = 3.0
"""Time that attempts which end with their worker get to leave a record."""
PACKAGES = ("conf", "runners")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of all workers; never written to disk, for the gateway's key is in them."""

    config: Config
    gateway_urls: tuple[str, ...]
    """The addresses of the gateway's processes for nodes, by their number."""
    admin_key: str = field(repr=False)
    public_url: str | None
    """As in ``gateway``: its address for sandboxes that are on no machine of the run."""
    run_tag: str | None
    """The tag of the run's sandboxes at a provider."""


class Worker:
    """The attempts of one node; used on one event loop."""

    def __init__(self, node: str) -> None:
        self._exits = AsyncExitStack()
        self._recorder = RemoteRecorder(node)
        self._context: AttemptContext
        self._relay: Relay
        self._watch = AttemptWatch()
        self._attempts: dict[str, asyncio.Task[AttemptResult]] = {}
        self._cancelled: set[str] = set()
        """Sessions of attempts that must not begin: calls may arrive in another order."""

    async def identity(self) -> dict[str, str]:
        """Return what must be the same on every node."""
        return identity()

    async def prepare(self, settings: WorkerSettings) -> dict[str, str]:
        """Get ready to run attempts; returns what sandboxes on this node guarantee."""
        config, root = settings.config, _make_directory()
        self._exits.callback(shutil.rmtree, root, ignore_errors=True)
        sandboxes = root / "sandboxes"
        if settings.run_tag is not None:
            sandboxes.mkdir()
            (sandboxes / "mark").write_text(settings.run_tag)
        backend = await asyncio.to_thread(make_backend, config.sandbox, sandboxes)
        self._exits.push_async_callback(backend.close)
        gateway = GatewayAdmin(settings.gateway_urls, settings.admin_key)
        self._exits.push_async_callback(gateway.close)
        if not await gateway.healthy():
            raise ExecutorError(
                f"the gateway is not reached at {', '.join(settings.gateway_urls)}: see that no "
                "firewall is between, or set gateway.host to an address that this node reaches"
            )
        faults = self._exits.enter_context(worker_faults(config.faults, self._recorder, gateway))
        registered = faults.wrap_backend(RegisteredBackend(backend, self._recorder))
        cache = cache_root() / "workspaces"
        made = TaskRepositories(registered, cache)
        repositories = RepositoryCache(cache, self._recorder.repository, made.ensure)
        self._relay = Relay(settings.gateway_urls, root)
        self._context = faults.wrap_context(
            AttemptContext(
                backend=registered,
                harness=await asyncio.to_thread(make_harness, config.harness, config.scenario),
                grader=make_grader(registered, config, repositories.ready, root),
                gateway=gateway,
                gateway_url=settings.public_url,
                gateway_control=root,  # each attempt has its own
                deadlines=config.rollout.deadlines,
                capture=CaptureLimits.of(config.rollout.capture),
                reward=make_reward(config.reward),
                scenario=config.scenario.kind,
                sandbox_starts=TokenBucket(None),  # the driver counts those of all nodes
                watch=self._watch,
                max_turns=config.harness.max_turns,
                ready=repositories.ready,
            )
        )
        return backend.guarantees()

    async def poll(
        self, answers: list[tuple[int, Any]]
    ) -> tuple[dict[str, str], list[RecorderCall]]:
        """Take the driver's answers; return the stage of each attempt and the calls to answer, as
        soon as there is one.
        """
        for number, value in answers:
            self._recorder.answer(number, value)
        calls = await self._recorder.take_calls(POLL_S)
        return {flight.session_id: flight.stage for flight in self._watch.in_flight()}, calls

    async def run(self, spec: RolloutSpec, number: int, queued_s: float) -> AttemptResult | None:
        """Run an attempt; returns None if it was cancelled, whose record is stored then."""
        session_id = ids.session_id(spec.rollout_id, number)
        if session_id in self._cancelled:
            return None
        task = asyncio.create_task(self._run(spec, number, queued_s), name=session_id)
        self._attempts[session_id] = task
        try:
            await asyncio.wait([task])
            return None if task.cancelled() else task.result()
        finally:
            del self._attempts[session_id]

    async def cancel(self, session_id: str) -> None:
        """Cancel an attempt; returns when it has removed what it made."""
        self._cancelled.add(session_id)
        if task := self._attempts.get(session_id):
            _cancel_once(task)
            await asyncio.wait([task])

    async def close(self) -> None:
        """End every attempt and remove everything that was made on this node; a driver that does
        not answer is not waited for.
        """
        attempts = list(self._attempts.values())
        for task in attempts:
            _cancel_once(task)
        if attempts:
            await asyncio.wait(attempts, timeout=SHUTDOWN_GRACE_S)
            self._recorder.give_up()
            await asyncio.wait(attempts)
        await self._exits.aclose()

    async def _run(self, spec: RolloutSpec, number: int, queued_s: float) -> AttemptResult:
        async with self._relay.control() as control:
            context = replace(self._context, gateway_control=control)
            attempt = Attempt(context, self._recorder, spec, number, queued_s=queued_s)
            result = await attempt.run()
        await self._recorder.flush()
        return replace(result, record=self._recorder.with_node(result.record))


def _cancel_once(task: asyncio.Task[AttemptResult]) -> None:
    """Cancel an attempt; one that is being cancelled is left to its teardown, which a second
    cancellation would interrupt.
    """
    if not task.cancelling():
        task.cancel()


def _make_directory() -> Path:
    """Make a directory for this process, and remove those of workers that were killed."""
    parent = Path(tempfile.gettempdir())
    for other in parent.glob(f"{PREFIX}*"):
        if is_stale(other.name):
            shutil.rmtree(other, ignore_errors=True)
    root = parent / make_unique_name()
    root.mkdir(mode=0o700)
    return root


@cache
def identity() -> dict[str, str]:
    """Return what must be the same on every node: Python, and the checksum of agentrl's sources."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[3]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "agentrl": f"sources {digest.hexdigest()[:12]}"}

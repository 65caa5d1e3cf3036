"""Run attempts on a node of a cluster, in this node's sandboxes, as the driver says.

Invariant: nothing is stored here: what must not be lost is durable with the driver before an
attempt goes on (``recording``). A worker calls the driver, never the driver a worker; one that
cannot call any more ends. Nothing here knows Ray, which merely runs it (``placement``).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from conf.cache import cache_root
from conf.errors import AgentrlError
from runners.concurrency.limits import TokenBucket
from runners.diagnostics.attempt_progress import AttemptWatch
from runners.faults.wiring import worker_faults
from runners.gateway.client import GatewayAdmin
from runners.harnesses.registry import make_harness
from runners.processes.process_names import PREFIX, is_stale, make_unique_name
from runners.ray_workers.json_http import JsonClient
from runners.ray_workers.recording import ANSWER_S, RemoteRecorder
from runners.ray_workers.relay import Relay
from runners.ray_workers.remote_errors import (
    ExecutorError,
    NodeLost,
    Unreachable,
    encode_error,
)
from runners.ray_workers.repository_cache import RepositoryCache
from runners.ray_workers.wire import RESULT, SPEC, WorkerSettings, dump, identity
from runners.rollouts.attempt import Attempt
from runners.rollouts.context import AttemptContext, AttemptResult
from runners.rollouts.reward import make_reward
from runners.rollouts.spec import RolloutSpec
from runners.sandboxes.backends import make_backend
from runners.sandboxes.wrappers import RegisteredBackend
from runners.tasks.capture_limits import CaptureLimits
from runners.tasks.grading import make_grader
from runners.tasks.task_repositories import TaskRepositories
from runners.trajectory import ids

SHUTDOWN_GRACE_S = 3.0
"""Time that attempts which end with their worker get to leave a record."""
DRIVER_SILENCE_S = 600.0
"""A driver that is gone is noticed at once; one whose machine is cut off, after this."""


class Worker:
    """The attempts of one node; used on one event loop."""

    def __init__(self) -> None:
        self._exits = AsyncExitStack()
        self._driver: JsonClient
        self._recorder: RemoteRecorder
        self._context: AttemptContext
        self._relay: Relay
        self._watch = AttemptWatch()
        self._attempts: dict[str, asyncio.Task[AttemptResult]] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def run(self, url: str, token: str, node: str) -> dict[str, Any] | None:
        """Work for the driver at ``url`` until it is gone, or until ``close``; returns the encoded
        error if that is why it ends.
        """
        self._driver = JsonClient(url, token)
        self._recorder = RemoteRecorder(self._driver, node)
        try:
            await self._work()
        except Exception as error:  # the top of a worker
            if self._closing is not None:
                return None
            away = isinstance(error, Unreachable)
            return encode_error(NodeLost(f"the driver at {error}", node) if away else error)
        finally:
            await self.close()

    async def close(self) -> None:
        """End every attempt and remove everything that was made on this node; a driver that does
        not answer is not waited for.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close")
        await asyncio.shield(self._closing)

    async def _work(self) -> NoReturn:
        """Get ready, then do what each answer of the driver says."""
        found = await self._driver.call("settings", identity(), deadline_s=ANSWER_S)
        guarantees = await self._prepare(WorkerSettings.model_validate(found))
        await self._driver.call("ready", guarantees, deadline_s=ANSWER_S)
        while True:
            stages = {flight.session_id: flight.stage for flight in self._watch.in_flight()}
            orders = await self._driver.call("poll", stages, deadline_s=DRIVER_SILENCE_S)
            for order in orders["start"]:
                spec, number = SPEC.validate_python(order["spec"]), order["number"]
                attempt = self._attempt(spec, number, order["queued_s"])
                session_id = ids.session_id(spec.rollout_id, number)
                self._attempts[session_id] = asyncio.create_task(attempt, name=session_id)
                report = asyncio.create_task(self._report(session_id))
                self._reports.add(report)
                report.add_done_callback(self._reports.discard)
            for session_id in orders["cancel"]:
                if session_id in self._attempts:
                    _cancel_once(self._attempts[session_id])

    async def _report(self, session_id: str) -> None:
        """Wait for the end of an attempt and report what it returned or raised."""
        work = self._attempts[session_id]
        await asyncio.wait([work])
        del self._attempts[session_id]
        report: dict[str, Any] = {"session_id": session_id}
        try:
            report["result"] = dump(RESULT, work.result())
        except (Exception, asyncio.CancelledError) as error:
            report["error"] = encode_error(error)
        with suppress(AgentrlError):  # the worker is given up, and ends
            await self._driver.call("ended", report, deadline_s=ANSWER_S)

    async def _attempt(self, spec: RolloutSpec, number: int, queued_s: float) -> AttemptResult:
        async with self._relay.control() as control:
            context = replace(self._context, gateway_control=control)
            attempt = Attempt(context, self._recorder, spec, number, queued_s=queued_s)
            result = await attempt.run()
        await self._recorder.flush()
        return replace(result, record=self._recorder.with_node(result.record))

    async def _prepare(self, settings: WorkerSettings) -> dict[str, str]:
        """Get ready to run attempts; returns what sandboxes on this node guarantee."""
        config, root = settings.config, _make_directory()
        self._exits.callback(shutil.rmtree, root, ignore_errors=True)
        sandboxes = root / "sandboxes"
        if settings.run_tag is not None:
            sandboxes.mkdir()
            (sandboxes / "mark").write_text(settings.run_tag)
        backend = await asyncio.to_thread(make_backend, config.sandbox, sandboxes)
        self._exits.push_async_callback(backend.close)
        gateway = GatewayAdmin(settings.gateway_url, settings.admin_key)
        self._exits.push_async_callback(gateway.close)
        if not await gateway.healthy():
            raise ExecutorError(
                f"the gateway is not reached at {settings.gateway_url}: see that no firewall is "
                "between, or set gateway.host to an address that this node reaches"
            )
        faults = self._exits.enter_context(
            worker_faults(config.faults, _FaultEvents(self._recorder.start_event), gateway)
        )
        registered = faults.wrap_backend(RegisteredBackend(backend, self._recorder))
        cache = cache_root() / "workspaces"
        made = TaskRepositories(registered, cache)
        repositories = RepositoryCache(cache, self._recorder.repository, made.ensure)
        self._relay = Relay(settings.gateway_url, root)
        self._context = faults.wrap_context(
            AttemptContext(
                backend=registered,
                harness=await asyncio.to_thread(make_harness, config.harness, config.scenario),
                grader=make_grader(registered, config, repositories.ready, root),
                gateway=gateway,
                gateway_url=settings.sandbox_gateway_url,
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

    async def _close(self) -> None:
        attempts = list(self._attempts.values())
        for task in attempts:
            _cancel_once(task)
        if attempts:
            await asyncio.wait(attempts, timeout=SHUTDOWN_GRACE_S)
        await self._driver.close()  # whatever waits for the driver fails now
        if attempts:
            await asyncio.wait(attempts)
        await self._exits.aclose()


def _cancel_once(task: asyncio.Task[AttemptResult]) -> None:
    """Cancel an attempt; one that is being cancelled is left to its teardown, which a second
    cancellation would interrupt.
    """
    if not task.cancelling():
        task.cancel()


class _FaultEvents:
    """Has the driver record the faults that are injected here."""

    def __init__(self, start_event: Callable[[str, dict[str, Any]], None]) -> None:
        self._start_event = start_event

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record an event before the attempt ends, without waiting."""
        self._start_event(kind, data)


def _make_directory() -> Path:
    """Make a directory for this process, and remove those of workers that were killed."""
    parent = Path(tempfile.gettempdir())
    for other in parent.glob(f"{PREFIX}*"):
        if is_stale(other.name):
            shutil.rmtree(other, ignore_errors=True)
    root = parent / make_unique_name()
    root.mkdir(mode=0o700)
    return root

"""Keep one ready worker on every node of the cluster, and give each attempt to the least busy one.

Invariant: an attempt runs on one worker, and ends with NodeLost when that is lost: when its node
dies or leaves, when it does not call for too long, or when it cannot call the driver any more.
Calls of a lost worker are refused, and its node gets a new one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from conf.errors import AgentrlError, ExitCode, error_text
from runners.diagnostics.attempt_progress import AttemptProgress
from runners.ray_workers.json_http import Handler, JsonClient
from runners.ray_workers.remote_errors import ExecutorError, NodeLost, Unreachable, decode_error
from runners.ray_workers.wire import RESULT, SPEC, WorkerSettings, dump, identity
from runners.rollouts.context import AttemptResult
from runners.rollouts.spec import RolloutSpec
from runners.trajectory import ids
from runners.trajectory.outcome import Stage

_log = logging.getLogger(__name__)

POLL_S = 1.0
"""Time between two looks at the cluster's nodes; a worker's call is answered after it at latest."""
SILENCE_S = 60.0
"""A worker calls every second; one that does not for so long has an event loop that hangs."""
PREPARE_S = 300.0
"""Time from a worker's start to its readiness: a Python starts, sandboxes are tried."""
PLACEMENT_S = 30.0
"""Time for an answer of the process that speaks Ray; a little more than workers get to close."""
RESTART_S = 30.0
"""Time before a node whose worker did not get ready is tried again."""


@dataclass(eq=False, slots=True)
class RemoteAttempt:
    """An attempt on a node; mutated by what its worker says."""

    spec: RolloutSpec
    number: int
    progress: AttemptProgress
    allowed_s: float
    """Time from the end of its queueing."""
    done: asyncio.Future[AttemptResult | BaseException]
    """Its result, or what it raised on its worker; raises the error of a lost worker."""
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    given_up: bool = False
    """Nobody waits for it any more."""

    @property
    def session_id(self) -> str:
        """Its gateway session."""
        return ids.session_id(self.spec.rollout_id, self.number)

    def enter_stage(self, stage: str, node: str) -> None:
        """Take note of where it is; its deadline begins with its work."""
        if self.given_up:  # while it is cancelled, its worker still says in which stage it is
            return
        self.progress.where = node
        if not stage or stage == self.progress.stage:
            return
        self.progress.enter(stage)
        if stage != Stage.QUEUE and self.limit.when() is None:
            self.limit.reschedule(asyncio.get_running_loop().time() + self.allowed_s)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the cluster."""

    node_id: str
    name: str
    """Unique in the cluster."""
    address: str


@dataclass(eq=False, slots=True)
class WorkerHandle:
    """A worker on a node; mutated by the pool."""

    node: NodeInfo
    ready: asyncio.Future[None]
    silent_s: float = 0.0
    """Time since its last call, as far as this process could have heard one."""
    attempts: dict[str, RemoteAttempt] = field(default_factory=dict)
    """Those that it runs, by session."""
    orders: dict[str, list[Any]] = field(default_factory=lambda: {"start": [], "cancel": []})
    """The answer to its next call."""
    ordered: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, kind: str, content: object) -> None:
        """Have it start or cancel an attempt."""
        self.orders[kind].append(content)
        self.ordered.set()


class WorkerPool:
    """The workers of one run, in the driver."""

    def __init__(
        self,
        placement: JsonClient,
        address: str,
        *,
        rollouts_per_node: int,
        patience_s: float,
        silence_s: float,
        event: Callable[[str, dict[str, Any]], None],
        on_node_lost: Callable[[str], Awaitable[None]],
    ) -> None:
        """``placement`` starts workers; ``address`` is this machine's in the cluster.

        ``rollouts_per_node`` attempts run on a node at once; without any node for ``patience_s``,
        ``dispatch`` raises; a worker that does not call for ``silence_s`` is lost. ``event``
        records; ``on_node_lost`` is awaited before attempts end.
        """
        self._placement = placement
        self._address = address
        self._rollouts_per_node = rollouts_per_node
        self._patience_s = patience_s
        self._silence_s = silence_s
        self._event = event
        self._on_node_lost = on_node_lost
        self._settings: WorkerSettings
        self._driver_url: str
        self.workers: dict[str, WorkerHandle] = {}
        """By token; those that are lost are not in it."""
        self._last_failure = "nothing"
        """The reason why the last node that was given up was."""
        self._not_before: dict[str, float] = {}
        """The time (``time.monotonic``) before which a node is not tried again."""
        self._changed = asyncio.Event()
        """Set when a worker may have room, or one that was ready is gone."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.handlers: Mapping[str, Handler] = {
            "settings": self._give_settings,
            "ready": self._set_ready,
            "poll": self._poll,
            "ended": self._end_attempt,
        }
        """The functions that workers call."""

    async def start(self, settings: WorkerSettings, driver_url: str) -> None:
        """Get a worker ready on every node there is; they call the driver at ``driver_url``.

        Raises ExecutorError with the reason of every node that cannot work. One that is just
        leaving the cluster is no reason, as long as there is another.
        """
        self._settings, self._driver_url = settings, driver_url
        nodes = await self._list_nodes()
        if not nodes:
            raise ExecutorError(
                "the Ray cluster has no node that may take rollouts: start another with "
                "`ray start --address=…`, or set executor.driver_node=true",
                ExitCode.PREFLIGHT,
            )
        found = await asyncio.gather(*map(self._start_worker, nodes), return_exceptions=True)
        failures = [each for each in found if each is not None]
        for failure in failures:
            if not isinstance(failure, AgentrlError):
                raise failure
        if len(failures) == len(nodes) or not all(isinstance(each, NodeLost) for each in failures):
            raise ExecutorError("\n".join(map(str, failures)), ExitCode.PREFLIGHT)
        self._spawn(self._watch_nodes(), "watch-nodes")

    async def dispatch(
        self, remote: RemoteAttempt, queued_since: float
    ) -> AttemptResult | BaseException:
        """Run an attempt and return its result, or what it raised on its worker.

        It has waited since ``queued_since`` (``time.monotonic``).
        Raises NodeLost, and ExecutorError if there is no node for too long or Ray is gone.
        """
        worker = await self._free_worker()
        worker.attempts[remote.session_id] = remote
        remote.done.add_done_callback(lambda _: self._free(worker, remote))
        queued_s = time.monotonic() - queued_since
        spec = dump(SPEC, remote.spec)
        worker.order("start", {"spec": spec, "number": remote.number, "queued_s": queued_s})
        return await asyncio.shield(remote.done)  # whoever is cancelled here calls ``cancel``

    async def cancel(self, remote: RemoteAttempt, deadline_s: float) -> None:
        """Have an attempt ended; returns when its worker has removed what it made, or too late."""
        remote.given_up = True
        for worker in self.workers.values():
            if remote.session_id in worker.attempts:
                worker.order("cancel", remote.session_id)
                await asyncio.wait([remote.done], timeout=deadline_s)
                return

    async def close(self) -> list[str]:
        """End all workers, and have them remove what they made; returns the nodes that did."""
        self._closing = True
        try:
            closed: list[str] = await self._placement.call("close", deadline_s=PLACEMENT_S)
        except Unreachable as error:  # the workers end with Ray's process
            _log.warning("%s", error)
            closed = []
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._placement.close()
        return closed

    # Nodes and their workers.

    async def _list_nodes(self) -> list[NodeInfo]:
        found = await self._placement.call("nodes", deadline_s=PLACEMENT_S)
        return [NodeInfo(**each) for each in found]

    async def _watch_nodes(self) -> None:
        """Start workers on nodes that join, and where one was lost."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                nodes = await self._list_nodes()
            except ExecutorError as error:  # who started Ray's process is told of its end
                _log.warning("the nodes of the cluster are not known: %s", error)
                continue
            known = {worker.node.name for worker in self.workers.values()}
            for node in nodes:
                not_before = self._not_before.get(node.name, 0.0)
                if node.name not in known and time.monotonic() >= not_before:
                    self._spawn(self._start_later(node), f"start-{node.name}")

    async def _start_later(self, node: NodeInfo) -> None:
        """Start a worker while the run goes on: a failure is no reason to end it."""
        try:
            await self._start_worker(node)
        except NodeLost as error:
            _log.warning("%s", error)
            self._last_failure = str(error)
            self._not_before[node.name] = time.monotonic() + RESTART_S
        except AgentrlError as error:
            self._last_failure = str(error)
            self._not_before[node.name] = math.inf
            self._event("node_refused", {"node": node.name, "reason": str(error)})

    async def _start_worker(self, node: NodeInfo) -> None:
        """Start a worker and wait until it is ready.

        Raises ExecutorError if it cannot work there, NodeLost if it is gone before it is ready.
        """
        host = urlsplit(self._settings.gateway_url).hostname or ""
        if node.address != self._address and is_loopback(host):
            raise ExecutorError(
                f"node {node.name} at {node.address} does not reach gateway.host={host}: set "
                f"gateway.host={self._address} (or 0.0.0.0)",
                ExitCode.PREFLIGHT,
            )
        worker = WorkerHandle(node, asyncio.get_running_loop().create_future())
        token = secrets.token_urlsafe(16)
        self.workers[token] = worker
        self._spawn(self._run_worker(worker, token), f"worker-{node.name}")
        await worker.ready

    async def _run_worker(self, worker: WorkerHandle, token: str) -> None:
        """Stay with a worker from its start until it ends or is silent for too long, and end its
        attempts with it.
        """
        node = worker.node
        failure: AgentrlError | TimeoutError = AgentrlError("it has closed")
        body = {"node_id": node.node_id, "node": node.name, "url": self._driver_url, "token": token}
        running = asyncio.create_task(self._placement.call("run", body, deadline_s=None))
        try:
            while not (await asyncio.wait([running], timeout=POLL_S))[0]:
                worker.silent_s += POLL_S  # no clock: the driver itself may have stood still
                limit = self._silence_s if worker.ready.done() else PREPARE_S
                if worker.silent_s > limit:
                    raise NodeLost(f"its worker did not call for {limit:g} s", node.name)
            if error := running.result():
                raise decode_error(error)
        except (AgentrlError, TimeoutError) as error:
            failure = error
        finally:
            running.cancel()
            del self.workers[token]
            if worker.ready.done():  # attempts may wait for room on it: there may be none left
                self._changed.set()
            await self._end_attempts(worker, failure)

    async def _end_attempts(self, worker: WorkerHandle, failure: BaseException) -> None:
        """Make a worker's end known, and then end its attempts with it."""
        node, text = worker.node.name, error_text(failure)
        error: AgentrlError = NodeLost(f"node {node}: {text}", node)
        try:
            if isinstance(failure, Unreachable):  # no node is lost, but all of them
                error = ExecutorError(f"the process that speaks Ray is gone: {text}")
            elif not worker.ready.done() and not isinstance(failure, NodeLost):
                error = ExecutorError(f"node {node}: {text}", ExitCode.PREFLIGHT)
            elif worker.ready.done() and not self._closing:
                _log.warning("node %s is lost: %s", node, text)
                self._last_failure = str(error)
                self._event("node_lost", {"node": node, "reason": text})
                await self._on_node_lost(node)
        finally:
            ends: list[asyncio.Future[Any]] = [each.done for each in worker.attempts.values()]
            for end in (worker.ready, *ends):
                if not end.done():
                    end.set_exception(error)
                    end.exception()  # read, or asyncio reports one that nobody waits for

    # Calls of workers.

    async def _give_settings(self, worker: WorkerHandle, theirs: dict[str, str]) -> dict[str, Any]:
        """Return the settings of a worker; raises ExecutorError unless it is the same agentrl."""
        for part, here in (await asyncio.to_thread(identity)).items():
            if theirs[part] != here:
                raise ExecutorError(
                    f"another {part} ({theirs[part]}) than the driver's ({here}): install the same "
                    "on every node"
                )
        return self._settings.model_dump(mode="json")

    async def _set_ready(self, worker: WorkerHandle, guarantees: dict[str, str]) -> None:
        self._event("node", {"node": worker.node.name, "guarantees": guarantees})
        worker.silent_s = 0.0
        worker.ready.set_result(None)
        self._changed.set()

    async def _poll(self, worker: WorkerHandle, stages: dict[str, str]) -> dict[str, list[Any]]:
        """Take note of the stages of a worker's attempts; returns the attempts that it must start
        and cancel, as soon as there is one.
        """
        worker.silent_s = 0.0
        for session_id, stage in stages.items():
            if session_id in worker.attempts:
                worker.attempts[session_id].enter_stage(stage, worker.node.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await worker.ordered.wait()
        worker.ordered.clear()
        orders, worker.orders = worker.orders, {"start": [], "cancel": []}
        return orders

    async def _end_attempt(self, worker: WorkerHandle, body: dict[str, Any]) -> None:
        result, error = body.get("result"), body.get("error")
        try:
            end = decode_error(error) if error else RESULT.validate_python(result)
        except ValueError as unreadable:  # the attempt ends all the same
            end = unreadable
        worker.attempts[body["session_id"]].done.set_result(end)

    # Room for attempts.

    async def _free_worker(self) -> WorkerHandle:
        """Return the least busy worker, when one has room; raises ExecutorError if for too long
        there is none at all.
        """
        while True:
            ready = [worker for worker in self.workers.values() if worker.ready.done()]
            free = [each for each in ready if len(each.attempts) < self._rollouts_per_node]
            if free:
                return min(free, key=lambda worker: len(worker.attempts))
            self._changed.clear()
            try:
                async with asyncio.timeout(None if ready else self._patience_s):
                    await self._changed.wait()
            except TimeoutError:
                raise ExecutorError(
                    f"no node of the Ray cluster could take rollouts for {self._patience_s:g} s "
                    f"(executor.patience_s), and of the last it was said: {self._last_failure}; "
                    "start some, then continue with --resume"
                ) from None

    def _free(self, worker: WorkerHandle, remote: RemoteAttempt) -> None:
        del worker.attempts[remote.session_id]
        self._changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def is_loopback(host: str) -> bool:
    """Return whether only its own machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

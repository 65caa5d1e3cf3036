"""Run attempts on the nodes of a Ray cluster (``executor=ray``), from the driver.

Invariant: the driver alone writes the store. Each attempt runs on the least busy node; when that is
lost, it ends as ``infra.node_lost``, and its gateway session is revoked, so whatever may still run
of it can take no turn. A node that joins, or lost its worker, gets a new worker.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from conf.errors import AgentrlError, ExitCode, error_text
from conf.schema import Config
from conf.sections.executor import RayExecutorConfig
from conf.sections.sandbox import ApptainerSandboxConfig, ContainerSandboxConfig
from runners.gateway.client import GatewayAdmin
from runners.records import ids
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.store import RunStore, StoreError
from runners.rollouts.contract import (
    AttemptContext,
    AttemptResult,
    RolloutSpec,
    classify_error,
    make_record,
)
from runners.sandboxes.contract import SandboxBackend, SandboxError
from runners.services.ray_workers.errors import ExecutorError, NodeLost
from runners.services.ray_workers.node_worker import SILENCE_S, NodeInfo, NodeWorker, RemoteWorker
from runners.services.ray_workers.remote_recorder import RecorderCall
from runners.services.ray_workers.repository_cache import pack_repository
from runners.services.ray_workers.worker import WorkerSettings
from runners.system.diagnostics import AttemptProgress
from runners.system.processes.ledger import Ledger, StoreRecorder
from runners.tasks.contract import Task

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Time between two looks at the cluster's nodes."""
RESTART_S = 30.0
"""Time before a node whose worker did not get ready is tried again."""
REAP_S = 30.0
"""Time to end the sandboxes that a lost node left at a provider."""
WILDCARDS = ("0.0.0.0", "::", "")


class Cluster(Protocol):
    """The machines on which workers run."""

    @property
    def address(self) -> str:
        """Return this machine's address in it."""
        ...

    async def nodes(self) -> list[NodeInfo]:
        """Return the nodes that are alive; raises ExecutorError."""
        ...

    def start_worker(self, node: NodeInfo) -> RemoteWorker:
        """Start a worker; its first call tells whether it runs."""
        ...


class RayExecutor:
    """Runs attempts on a cluster: an ``Execute``; one per run."""

    def __init__(
        self,
        config: RayExecutorConfig,
        cluster: Cluster,
        store: RunStore,
        ledger: Ledger,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Give up a worker that is silent for ``silence_s``."""
        self._config = config
        self._cluster = cluster
        self._store = store
        self._ledger = ledger
        self._silence_s = silence_s
        self._recorder: StoreRecorder
        self._settings: WorkerSettings
        self._backend: SandboxBackend | None
        """Ends the sandboxes of a lost node; None if they are containers, which only it can end."""
        self._repositories: dict[str, Path] = {}
        """Repositories that workers may ask for, by commit."""
        self._cancelled: set[str] = set()
        """Sessions of the attempts whose worker has recorded that they were cancelled."""
        self._workers: dict[str, NodeWorker] = {}
        """Those that are ready, by node."""
        self._not_before: dict[str, float] = {}
        """Time (``time.monotonic``) before which a node gets no worker; infinite: it has one."""
        self._last_failure = "nothing"
        """The reason why the last node that was given up was."""
        self._changed = asyncio.Event()
        """Set when a worker may have room, or one that was ready is gone."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(
        self,
        config: Config,
        gateway: GatewayAdmin,
        context: AttemptContext,
        recorder: StoreRecorder,
    ) -> None:
        """Get a worker ready on every node there is.

        ``gateway`` is the driver's client; ``recorder`` stores what the attempts give;
        ``context.backend`` ends what a lost node left at a provider. Raises ExecutorError with the
        reason of every node that cannot work; one that just leaves the cluster is no reason, as
        long as there is another.
        """
        # A machine's own containers outlive who made them: they stay in the ledger.
        own = isinstance(config.sandbox, ContainerSandboxConfig | ApptainerSandboxConfig)
        self._backend = None if own else context.backend
        self._recorder = recorder
        announced, host = [urlsplit(url) for url in gateway.urls], config.gateway.host
        name = self._cluster.address if host in WILDCARDS else announced[0].hostname or host
        name = f"[{name}]" if ":" in name else name
        tag = self._store.run_dir / "sandboxes" / "mark"
        self._settings = WorkerSettings(
            config=config,
            gateway_urls=tuple(f"http://{name}:{url.port}" for url in announced),
            admin_key=gateway.admin_key,
            public_url=config.gateway.public_url,
            run_tag=tag.read_text() if tag.exists() else None,
        )
        if not (nodes := await self._cluster.nodes()):
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

    async def close(self) -> None:
        """End every worker; what they had made is gone then, also what nobody waited for."""
        self._closing = True
        # Meanwhile their calls are answered: cancelled attempts leave their records.
        await asyncio.gather(*map(self._close_worker, list(self._workers.values())))
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __call__(
        self, context: AttemptContext, spec: RolloutSpec, number: int, queued_s: float
    ) -> AttemptResult:
        """Run an attempt on some node."""
        queued_since = time.monotonic() - queued_s
        with context.watch.attempt(ids.session_id(spec.rollout_id, number)) as progress:
            progress.enter(Stage.QUEUE)

            def fail(code: OutcomeCode, text: str) -> AttemptResult:
                outcome = Outcome(code, Stage(progress.stage), text)
                return self._make_result(spec, number, progress, outcome)

            try:
                await context.sandbox_starts.take()
                sendable = replace(spec, task=await self._make_sendable(context, spec.task))
                worker = await self._free_worker()
                return await worker.run(
                    sendable,
                    number,
                    progress,
                    queued_s=time.monotonic() - queued_since,
                    cancel_s=2 * context.deadlines.teardown_s,
                )
            except asyncio.CancelledError:
                if progress.session_id not in self._cancelled:
                    cancelled = fail(OutcomeCode.CANCELLED_USER, "cancelled")
                    self._store.put_rollout(cancelled.record)
                raise
            except NodeLost as lost:
                await self._revoke_session(context, progress.session_id)
                shared, lost.reported = lost.reported, True  # all attempts of the node raise it
                return replace(fail(OutcomeCode.INFRA_NODE_LOST, str(lost)), shared=shared)
            except SandboxError as error:  # the task's repository
                return fail(classify_error(error, Stage.QUEUE).code, error_text(error))
            except (StoreError, ExecutorError):
                raise
            except AgentrlError as error:
                return fail(OutcomeCode.INTERNAL_ERROR, f"its worker failed: {error_text(error)}")

    # Nodes and their workers.

    async def _watch_nodes(self) -> None:
        """Start workers on nodes that join, and where one was lost."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                nodes = await self._cluster.nodes()
            except ExecutorError as error:
                _log.warning("%s", error)
                continue
            for node in nodes:
                if time.monotonic() >= self._not_before.get(node.name, 0.0):
                    self._spawn(self._start_later(node), f"start-{node.name}")
                    await asyncio.sleep(0)  # it has taken note of the node

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
            self._store.event("node_refused", {"node": node.name, "reason": str(error)})

    async def _start_worker(self, node: NodeInfo) -> None:
        """Start a worker and wait until it is ready.

        Raises ExecutorError if it cannot work there, NodeLost if it is gone before it is ready.
        """
        self._not_before[node.name] = math.inf
        host, address = (
            urlsplit(self._settings.gateway_urls[0]).hostname or "",
            self._cluster.address,
        )
        if node.address != address and is_loopback(host):
            raise ExecutorError(
                f"node {node.name} at {node.address} does not reach gateway.host={host}: set "
                f"gateway.host={address} (or 0.0.0.0)",
                ExitCode.PREFLIGHT,
            )
        remote = self._cluster.start_worker(node)
        worker = NodeWorker(
            node, remote, self._answer, self._changed.set, silence_s=self._silence_s
        )
        async with AsyncExitStack() as on_failure:
            on_failure.callback(remote.kill)
            try:
                guarantees = await worker.prepare(self._settings)
            except NodeLost as error:
                raise NodeLost(f"node {node.name}: {error}") from error
            except AgentrlError as error:
                raise ExecutorError(f"node {node.name}: {error}", ExitCode.PREFLIGHT) from error
            on_failure.pop_all()
        self._store.event("node", {"node": node.name, "guarantees": guarantees})
        self._workers[node.name] = worker
        self._spawn(self._follow(worker), f"worker-{node.name}")
        self._changed.set()

    async def _follow(self, worker: NodeWorker) -> None:
        """Stay with a worker until it is lost, make that known, and then let its attempts end."""
        reason = "it was closed"
        try:
            await worker.follow()
        except AgentrlError as error:
            reason = error_text(error)
            if not self._closing:
                _log.warning("node %s is lost: %s", worker.name, reason)
                self._store.event("node_lost", {"node": worker.name, "reason": reason})
                await self._remove_sandboxes(worker.name)
        finally:
            lost = NodeLost(f"node {worker.name}: {reason}")
            self._last_failure = str(lost)
            del self._workers[worker.name], self._not_before[worker.name]
            self._changed.set()  # attempts may wait for room on it: there may be no other
            worker.lose(lost)

    async def _close_worker(self, worker: NodeWorker) -> None:
        try:
            await worker.close()
        except (AgentrlError, TimeoutError) as error:
            _log.warning("node %s: its worker did not close: %s", worker.name, error_text(error))
            return
        for name in self._sandboxes(worker.name):
            self._ledger.unregister("sandbox", name)

    async def _answer(self, node: str, call: RecorderCall) -> Any:
        """Do what a worker asks."""
        method, arguments = call.method, call.arguments
        if method == "repository":
            return await asyncio.to_thread(pack_repository, self._repositories[arguments[0]])
        if method == "register":
            return self._ledger.register(*arguments, node=node)
        if method == "put_rollout" and arguments[0].outcome.code is OutcomeCode.CANCELLED_USER:
            self._cancelled.add(arguments[0].session_id)
        return await getattr(self._recorder, method)(*arguments)

    async def _free_worker(self) -> NodeWorker:
        """Return the least busy worker, when one has room; raises ExecutorError if for too long
        there is none at all.
        """
        patience_s = self._config.patience_s
        while True:
            least = min(self._workers.values(), key=lambda each: len(each.attempts), default=None)
            if least is not None and len(least.attempts) < self._config.rollouts_per_node:
                return least
            self._changed.clear()
            try:
                async with asyncio.timeout(patience_s if least is None else None):
                    await self._changed.wait()
            except TimeoutError:
                raise ExecutorError(
                    f"no node of the Ray cluster could take rollouts for {patience_s:g} s "
                    f"(executor.patience_s), and of the last it was said: {self._last_failure}; "
                    "start some, then continue with --resume"
                ) from None

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What attempts have made, and what is left of them.

    async def _remove_sandboxes(self, node: str) -> None:
        """End the sandboxes that a lost worker made and left elsewhere."""
        if self._backend is None:
            return
        left = self._sandboxes(node)
        try:
            async with asyncio.timeout(REAP_S):
                await self._backend.reap(left)
        except (AgentrlError, TimeoutError) as error:  # they stay in the ledger
            self._store.event("reaped", {"ended": [], "failed": dict.fromkeys(left, str(error))})
            return
        for name in left:
            self._ledger.unregister("sandbox", name)

    def _sandboxes(self, node: str) -> dict[str, dict[str, Any]]:
        """Return the facts of a node's sandboxes in the ledger, by name."""
        return {
            entry.name: entry.facts
            for entry in self._ledger.entries()
            if entry.kind == "sandbox" and entry.facts.get("node") == node
        }

    async def _make_sendable(self, context: AttemptContext, task: Task) -> Task:
        """Return the task as a node can use it: a repository that only this machine has is made
        here, and sent when a node asks for it.
        """
        if task.origin is not None:
            source = task.origin.source
            if source is None or not Path(source).exists():
                return task
        ready = await context.ready(task)
        self._repositories[ready.base_commit] = ready.repo
        return ready

    async def _revoke_session(self, context: AttemptContext, session_id: str) -> None:
        """Delete the session of an attempt that may still run somewhere: it takes no more turns."""
        with suppress(AgentrlError, TimeoutError):
            async with asyncio.timeout(context.deadlines.teardown_s):
                await context.gateway.delete(session_id)
        self._ledger.unregister("session", session_id)

    def _make_result(
        self, spec: RolloutSpec, number: int, progress: AttemptProgress, outcome: Outcome
    ) -> AttemptResult:
        """Return the result of an attempt whose worker brings none."""
        summary = self._store.session_summary(progress.session_id)
        record = make_record(spec, number, outcome, summary)
        timings = progress.timings()
        timings["total"] = sum(timings.values())
        node = {"node": progress.where} if progress.where else {}
        return AttemptResult(
            replace(record, timings=timings, extra=record.extra | node), pushed_back=False
        )


def is_loopback(host: str) -> bool:
    """Return whether only its own machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def join(
    config: RayExecutorConfig, exits: AsyncExitStack, store: RunStore, ledger: Ledger
) -> RayExecutor:
    """Join the cluster until ``exits`` is left; raises ExecutorError."""
    if importlib.util.find_spec("ray") is None:
        raise ExecutorError(
            "executor=ray needs ray, which is missing: pip install 'agentrl-campaigns[ray]'",
            ExitCode.PREFLIGHT,
        )

    def connect() -> RayCluster:
        return RayCluster(
            config.address,
            driver_node=config.driver_node,
            rollouts_per_node=config.rollouts_per_node,
        )

    from runners.services.ray_workers.cluster import RayCluster  # imports Ray, which takes a second

    cluster = await asyncio.to_thread(connect)
    exits.callback(cluster.leave)
    return RayExecutor(config, cluster, store, ledger)

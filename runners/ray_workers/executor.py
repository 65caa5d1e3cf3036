"""Run attempts on the nodes of a Ray cluster (``executor=ray``), from the driver.

Invariant: the driver alone writes the store. An attempt whose node is lost ends as
``infra.node_lost``, one whose worker never ends it as ``internal.guard``; its gateway session is
revoked, so whatever may still run of it can take no turn.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conf.errors import AgentrlError, ExitCode, error_text
from conf.schema import Config
from conf.sections.executor import RayExecutorConfig
from conf.sections.sandbox import ApptainerSandboxConfig, ContainerSandboxConfig
from runners.processes.ledger import Ledger
from runners.processes.recorder import StoreRecorder
from runners.processes.service import Service, ServiceStarter
from runners.ray_workers.json_http import JsonClient, JsonServer
from runners.ray_workers.recording import DriverRecording
from runners.ray_workers.remote_errors import ExecutorError, NodeLost
from runners.ray_workers.wire import WorkerSettings
from runners.ray_workers.worker_pool import SILENCE_S, RemoteAttempt, WorkerPool
from runners.rollouts.attempt_record import classify_error, make_record
from runners.rollouts.context import AttemptContext, AttemptResult
from runners.rollouts.spec import RolloutSpec
from runners.sandboxes.contract import SandboxBackend, SandboxError
from runners.store.run_store import RunStore
from runners.store.store_error import StoreError
from runners.tasks.contract import Task
from runners.trajectory import ids
from runners.trajectory.outcome import Outcome, OutcomeCode, Stage

START_S = 180.0
"""Time to import Ray and find the cluster: over a minute on a head node that is busy."""
REAP_S = 30.0
"""Time to end the sandboxes that a lost node left at a provider."""
GRACE_S = 60.0
"""Time after an attempt's own guard and teardown: its worker should have given it up by then."""
WILDCARDS = ("0.0.0.0", "::", "")


class RayExecutor:
    """Runs attempts on a cluster: an ``Execute``; one per run."""

    def __init__(
        self,
        config: RayExecutorConfig,
        placement: Mapping[str, Any],
        store: RunStore,
        ledger: Ledger,
        *,
        grace_s: float = GRACE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """``placement`` is what the process that speaks Ray announced: its URL and token, and this
        machine's address in the cluster. A worker gets ``grace_s`` beyond the deadlines of its
        attempt, and is lost when it is silent for ``silence_s``.
        """
        self._address = placement["address"]
        self._grace_s = grace_s
        self._store = store
        self._ledger = ledger
        self._pool = WorkerPool(
            JsonClient(placement["url"], placement["token"]),
            self._address,
            rollouts_per_node=config.rollouts_per_node,
            patience_s=config.patience_s,
            silence_s=silence_s,
            event=store.event,
            on_node_lost=self._remove_sandboxes,
        )
        self._recording: DriverRecording
        self._server: JsonServer | None = None
        self._backend: SandboxBackend | None
        """Ends the sandboxes of a lost node; None if they are containers, which only it can end."""

    async def start(
        self,
        config: Config,
        gateway: Mapping[str, Any],
        context: AttemptContext,
        recorder: StoreRecorder,
    ) -> None:
        """Get every node ready; raises ExecutorError with all that stands in the way.

        ``gateway`` is what the gateway announced; ``recorder`` stores what the attempts give;
        ``context.backend`` ends what a lost node left at a provider.
        """
        # A machine's own containers outlive who made them: they stay in the ledger.
        own = isinstance(config.sandbox, ContainerSandboxConfig | ApptainerSandboxConfig)
        self._backend = None if own else context.backend
        self._recording = DriverRecording(recorder, self._ledger)
        host = config.gateway.host
        self._server = JsonServer(
            self._pool.workers, {**self._recording.handlers, **self._pool.handlers}
        )
        try:  # beside the gateway, which nodes must reach anyway
            port = await self._server.start(host)
        except OSError as error:
            raise ExecutorError(f"cannot listen at gateway.host={host}: {error}") from error
        announced = urlsplit(gateway["url"])
        name = self._address if host in WILDCARDS else announced.hostname or host
        name = f"[{name}]" if ":" in name else name
        url = f"http://{name}:{announced.port}"
        tag = self._store.run_dir / "sandboxes" / "mark"
        await self._pool.start(
            WorkerSettings(
                config=config,
                gateway_url=url,
                admin_key=gateway["admin_key"],
                sandbox_gateway_url=config.gateway.public_url or url,
                run_tag=tag.read_text() if tag.exists() else None,
            ),
            f"http://{name}:{port}",
        )

    async def close(self) -> None:
        """End every worker; what they had made is gone then, also what nobody waited for."""
        try:
            for node in await self._pool.close():
                for name in self._sandboxes(node):
                    self._ledger.unregister("sandbox", name)
        finally:
            if self._server is not None:
                await self._server.close()

    async def __call__(
        self, context: AttemptContext, spec: RolloutSpec, number: int, queued_s: float
    ) -> AttemptResult:
        """Run an attempt on some node."""
        queued_since, teardown_s = time.monotonic() - queued_s, 2 * context.deadlines.teardown_s
        allowed_s = context.deadlines.guard_s + teardown_s + self._grace_s
        with context.watch.attempt(ids.session_id(spec.rollout_id, number)) as progress:
            progress.enter(Stage.QUEUE)
            done = asyncio.get_running_loop().create_future()
            remote = RemoteAttempt(spec, number, progress, allowed_s, done)
            try:
                await context.sandbox_starts.take()
                remote.spec = replace(spec, task=await self._make_sendable(context, spec.task))
                async with remote.limit:
                    answer = await self._pool.dispatch(remote, queued_since)
            except asyncio.CancelledError:
                await self._pool.cancel(remote, teardown_s)
                self._record_cancelled(remote)
                raise
            except NodeLost as lost:
                await self._revoke_session(context, remote.session_id)
                shared, lost.reported = lost.reported, True  # all attempts of the node raise it
                code = OutcomeCode.INFRA_NODE_LOST
                result = self._fail(remote, code, str(lost), node=lost.node)
                return replace(result, shared=shared)
            except TimeoutError:
                await self._pool.cancel(remote, teardown_s)
                await self._revoke_session(context, remote.session_id)
                text = f"its worker had not ended the attempt after {allowed_s:g} s"
                return self._fail(remote, OutcomeCode.INTERNAL_GUARD, text)
            except SandboxError as error:  # the task's repository
                code = classify_error(error, Stage.QUEUE).code
                return self._fail(remote, code, error_text(error))
            if isinstance(answer, AttemptResult):
                return answer
            if isinstance(answer, StoreError):
                raise answer
            text = f"its worker failed: {error_text(answer)}"
            return self._fail(remote, OutcomeCode.INTERNAL_ERROR, text)

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
        self._recording.repositories[ready.base_commit] = ready.repo
        return ready

    def _record_cancelled(self, remote: RemoteAttempt) -> None:
        """Write the record of a cancelled attempt, unless its worker has."""
        if remote.session_id not in self._recording.cancelled:
            cancelled = self._fail(remote, OutcomeCode.CANCELLED_USER, "cancelled")
            self._store.put_rollout(cancelled.record)

    async def _revoke_session(self, context: AttemptContext, session_id: str) -> None:
        """Delete the session of an attempt that may still run somewhere: it takes no more turns."""
        with suppress(AgentrlError, TimeoutError):
            async with asyncio.timeout(context.deadlines.teardown_s):
                await context.gateway.delete(session_id)
        self._ledger.unregister("session", session_id)

    def _fail(
        self, remote: RemoteAttempt, code: OutcomeCode, text: str, **extra: str
    ) -> AttemptResult:
        """Return the result of an attempt whose worker brings none."""
        outcome = Outcome(code, Stage(remote.progress.stage), text)
        summary = self._store.session_summary(remote.session_id)
        timings = remote.progress.timings()
        timings["total"] = sum(timings.values())
        record = make_record(remote.spec, remote.number, outcome, summary)
        final = replace(record, timings=timings, extra=record.extra | extra)
        return AttemptResult(final, pushed_back=False)


async def join(
    config: RayExecutorConfig, starter: ServiceStarter, store: RunStore, ledger: Ledger
) -> RayExecutor:
    """Join the cluster; raises AgentrlError."""
    if importlib.util.find_spec("ray") is None:
        raise ExecutorError(
            "executor=ray needs ray, which is missing: pip install 'agentrl[ray]'",
            ExitCode.PREFLIGHT,
        )
    service = await Service.start(
        "ray",
        "runners.ray_workers.placement",
        config.model_dump(include={"address", "driver_node"}),
        log=starter.log("ray"),
        deadline_s=START_S,
        ledger=ledger,
    )
    starter.exits.push_async_callback(service.stop)
    if "refused" in service.info:
        raise ExecutorError(service.info["refused"], ExitCode(service.info["exit_code"]))
    service.watch(starter.on_exit)  # only now: one that refuses ends by itself
    return RayExecutor(config, service.info, store, ledger)

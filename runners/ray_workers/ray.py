"""``executor=ray``, the driver's side: attempts go to the nodes of a Ray cluster, and what must not
be lost comes back to the run's store before it is acknowledged.

Invariant: the driver alone writes. An attempt whose node is lost ends here as ``infra.node_lost``,
one whose worker never ends it as ``internal.guard``: its gateway session is deleted, so whatever
may still run of it can take no turn.
"""

from __future__ import annotations

import asyncio
import importlib.util
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conf.errors import AgentrlError, ExitCode, error_text
from conf.schema import Config
from conf.sections.executor import RayExecutorConfig
from conf.sections.sandbox import DockerSandboxConfig
from runners.diagnostics.attempt_progress import AttemptProgress
from runners.processes.ledger import Ledger
from runners.processes.recorder import StoreRecorder
from runners.processes.service import Service, ServiceError
from runners.ray_workers.remote_errors import ExecutorError, NodeLost, raised, trouble_of
from runners.ray_workers.repository_cache import packed
from runners.ray_workers.rpc import Line
from runners.ray_workers.worker import Order, Question, WorkerSettings
from runners.rollouts.attempt_record import classify_error, make_record
from runners.rollouts.context import AttemptContext, AttemptResult
from runners.rollouts.spec import RolloutSpec
from runners.sandboxes.contract import SandboxBackend, SandboxError
from runners.store.run_store import RunStore
from runners.store.store_error import StoreError
from runners.tasks.contract import Task
from runners.trajectory import ids
from runners.trajectory.outcome import Outcome, OutcomeCode, Stage
from runners.trajectory.record import RolloutRecord

START_S = 60.0
"""To find the cluster."""
PREPARE_S = 330.0
"""To get every node ready; a little more than the bridge gives each."""
CLOSE_S = 30.0
GRACE_S = 60.0
"""After an attempt's own guard and teardown: its worker should have given it up by then."""
WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(slots=True)
class Away:
    """An attempt on a node; mutated by what its worker tells."""

    flight: AttemptProgress
    limit: asyncio.Timeout
    allowed_s: float
    """From the end of its queueing."""

    def entered(self, stage: str, node: str) -> None:
        """Take note of where it is; its deadline begins with its work."""
        self.flight.where = node
        if not stage or stage == self.flight.stage:
            return
        self.flight.enter(stage)
        if stage != Stage.QUEUE and self.limit.when() is None:
            self.limit.reschedule(asyncio.get_running_loop().time() + self.allowed_s)


class RayExecutor:
    """Runs attempts on a cluster: an ``Execute``; one per run."""

    def __init__(
        self,
        bridge: Mapping[str, Any],
        store: RunStore,
        ledger: Ledger,
        *,
        grace_s: float = GRACE_S,
    ) -> None:
        """``bridge`` is what it announced: where its line is, and this machine's address in the
        cluster. ``grace_s``: what a worker gets beyond the deadlines of its attempt.
        """
        self._bridge = bridge
        self._grace_s = grace_s
        self._store = store
        self._ledger = ledger
        self._keeper = StoreRecorder(store, ledger)
        self._backend: SandboxBackend
        self._line: Line
        self._away: dict[str, Away] = {}
        self._repositories: dict[str, Path] = {}
        """By commit, of the tasks that went out."""
        self._cancelled: set[str] = set()
        """Attempts whose worker has kept that they were cancelled."""
        self._gone_with_worker = True
        self._mourned: set[str] = set()
        """Nodes of whose loss an attempt has told."""

    async def open(self) -> None:
        """Take up the line to the bridge."""
        reader, writer = await asyncio.open_unix_connection(self._bridge["line"])
        self._line = Line(reader, writer, self._answer)
        self._serving = asyncio.create_task(self._line.serve(), name="ray-line")

    async def start(
        self,
        config: Config,
        gateway: Mapping[str, Any],
        context: AttemptContext,
        recorder: StoreRecorder,
    ) -> None:
        """Get every node ready; raises ExecutorError with all that stands in the way.

        ``gateway`` is what the gateway announced; ``recorder`` keeps what the attempts give;
        ``context.backend`` ends what a lost node left at a provider.
        """
        self._keeper = recorder
        self._backend = context.backend
        # A machine's own containers outlive who made them: they stay in the ledger.
        self._gone_with_worker = not isinstance(config.sandbox, DockerSandboxConfig)
        url = gateway["url"]
        if config.gateway.host in WILDCARDS:
            url = f"http://{self._bridge['address']}:{urlsplit(url).port}"
        mark = self._store.run_dir / "sandboxes" / "mark"
        settings = WorkerSettings(
            node="",
            config=config,
            gateway_url=url,
            admin_key=gateway["admin_key"],
            sandbox_gateway_url=config.gateway.public_url or url,
            mark=mark.read_text() if mark.exists() else None,
        )
        async with _within(PREPARE_S, "the nodes of the Ray cluster"):
            found = await self._line.ask("start", settings)
        for name, guarantees in found.items():
            self._joined(name, guarantees)

    async def close(self) -> None:
        """End every worker; what they had made is gone then, also what nobody waited for."""
        try:
            with suppress(AgentrlError):
                async with _within(CLOSE_S, "the Ray cluster's workers"):
                    clean = await self._line.ask("close")
                for node in clean:
                    for name in self._sandboxes(node):
                        self._ledger.unregister("sandbox", name)
        finally:  # the bridge ends the workers at once when its line is cut
            self._line.close()
            self._serving.cancel()

    async def __call__(
        self, context: AttemptContext, spec: RolloutSpec, number: int, queued_s: float
    ) -> AttemptResult:
        """Run an attempt on some node."""
        loop, session_id = asyncio.get_running_loop(), ids.session_id(spec.rollout_id, number)
        asked, deadlines = loop.time(), context.deadlines
        allowed_s = deadlines.guard_s + 2 * deadlines.teardown_s + self._grace_s
        with context.watch.attempt(session_id) as flight:
            flight.enter(Stage.QUEUE)

            def failed(code: OutcomeCode, text: str) -> AttemptResult:
                outcome = Outcome(code, Stage(flight.stage), text)
                record = self._record(spec, number, outcome, flight, node)
                return AttemptResult(record, pushed_back=False)

            node = None
            try:
                await context.sandbox_starts.take()
                sent = await self._sendable(context, spec.task)
                order = Order(replace(spec, task=sent), number, queued_s + loop.time() - asked)
                async with asyncio.timeout(None) as limit:
                    self._away[session_id] = Away(flight, limit, allowed_s)
                    try:
                        found = await self._line.ask("run", session_id, pickle.dumps(order))
                    finally:  # whoever is called off may still be told of
                        del self._away[session_id]
                answer = pickle.loads(found)
            except asyncio.CancelledError:
                await self._call_off(spec, number, flight, 2 * deadlines.teardown_s)
                raise
            except NodeLost as lost:
                await self._shut_out(context, session_id)
                node = lost.node
                shared = lost.node in self._mourned
                self._mourned.add(lost.node)
                return replace(failed(OutcomeCode.INFRA_NODE_LOST, str(lost)), shared=shared)
            except TimeoutError:
                await self._cancel(session_id, 2 * deadlines.teardown_s)
                await self._shut_out(context, session_id)
                text = f"its worker had not ended the attempt after {allowed_s:g} s"
                return failed(OutcomeCode.INTERNAL_GUARD, text)
            except SandboxError as error:  # the task's repository
                return failed(classify_error(error, Stage.QUEUE).code, error_text(error))
            if isinstance(answer, AttemptResult):
                return answer
            trouble = raised(answer)
            if isinstance(trouble, StoreError):
                raise trouble
            return failed(OutcomeCode.INTERNAL_ERROR, f"its worker failed: {error_text(trouble)}")

    async def _sendable(self, context: AttemptContext, task: Task) -> Task:
        """Return the task as a node can use it: what only this machine has is made here, and sent
        when a node asks for it.
        """
        if task.origin is not None and not Path(task.origin.source).exists():
            return task
        ready = await context.ready(task)
        self._repositories[ready.base_commit] = ready.repo
        return ready

    async def _call_off(
        self, spec: RolloutSpec, number: int, flight: AttemptProgress, deadline_s: float
    ) -> None:
        """Have a node give an attempt up, and see to it that there is a record of that."""
        session_id = ids.session_id(spec.rollout_id, number)
        await self._cancel(session_id, deadline_s)
        if session_id in self._cancelled:
            return
        outcome = Outcome(OutcomeCode.CANCELLED_USER, Stage(flight.stage), "cancelled")
        self._store.put_rollout(self._record(spec, number, outcome, flight))

    async def _shut_out(self, context: AttemptContext, session_id: str) -> None:
        """Delete the session of an attempt that may still run somewhere: it takes no more turns."""
        with suppress(AgentrlError, TimeoutError):
            async with asyncio.timeout(context.deadlines.teardown_s):
                await context.gateway.delete(session_id)
        self._ledger.unregister("session", session_id)

    async def _cancel(self, session_id: str, deadline_s: float) -> None:
        """Have a node give an attempt up, if it hears."""
        with suppress(AgentrlError, TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._line.ask("cancel", session_id)

    def _record(
        self,
        spec: RolloutSpec,
        number: int,
        outcome: Outcome,
        flight: AttemptProgress,
        node: str | None = None,
    ) -> RolloutRecord:
        """Return the record of an attempt that its worker did not bring."""
        totals = self._store.turn_totals(ids.session_id(spec.rollout_id, number))
        timings = flight.timings()
        timings["total"] = sum(timings.values())
        extra = {} if node is None else {"node": node}
        return replace(make_record(spec, number, outcome, totals), timings=timings, extra=extra)

    # What the bridge and the workers ask.

    async def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        match name:
            case "question":
                return await self._question(*arguments)
            case "stages":
                node, stages = arguments
                for session_id, stage in stages.items():
                    if session_id in self._away:
                        self._away[session_id].entered(stage, node)
                return None
            case "joined":
                return self._joined(*arguments)
            case "refused":
                node, reason = arguments
                return self._store.event("node_refused", {"node": node, "reason": reason})
            case "lost":
                return await self._mourn(*arguments)
        raise ValueError(f"the driver knows no {name}")

    async def _question(self, node: str, asked: bytes) -> bytes:
        question: Question = pickle.loads(asked)
        try:
            return pickle.dumps(await self._kept(node, question.name, *question.arguments))
        except (Exception, asyncio.CancelledError) as error:  # it belongs to the attempt
            return pickle.dumps(trouble_of(error))

    async def _kept(self, node: str, name: str, *arguments: Any) -> Any:
        """Do what a worker's keeper is asked for."""
        match name:
            case "enter":
                kind, thing = arguments
                return self._ledger.register(kind, thing, node=node)
            case "leave":
                return await self._keeper.unregister(*arguments)
            case "put_rollout":
                (record,) = arguments
                if record.outcome.code is OutcomeCode.CANCELLED_USER:
                    self._cancelled.add(record.session_id)
                return await self._keeper.put_rollout(record)
            case "event":
                return await self._keeper.event(*arguments)
            case "turn_totals":
                return await self._keeper.turn_totals(*arguments)
            case "repository":
                return await asyncio.to_thread(packed, self._repositories[arguments[0]])
        raise ValueError(f"a keeper knows no {name}")

    def _joined(self, node: str, guarantees: dict[str, str]) -> None:
        self._mourned.discard(node)
        self._store.event("node", {"node": node, "guarantees": guarantees})

    def _sandboxes(self, node: str) -> dict[str, dict[str, Any]]:
        """Return what the ledger says of a node's sandboxes."""
        return {
            entry.name: entry.facts
            for entry in self._ledger.entries()
            if entry.kind == "sandbox" and entry.facts.get("node") == node
        }

    async def _mourn(self, node: str, reason: str) -> None:
        """Take note that a node's worker is gone, and with it what it had made there."""
        self._store.event("node_lost", {"node": node, "reason": reason})
        if not self._gone_with_worker:
            return
        left = self._sandboxes(node)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._backend.reap(left)
        except (AgentrlError, TimeoutError) as error:  # they stay in the ledger
            self._store.event("reaped", {"ended": [], "failed": dict.fromkeys(left, str(error))})
            return
        for name in left:
            self._ledger.unregister("sandbox", name)


async def join(
    config: RayExecutorConfig,
    run_dir: Path,
    exits: AsyncExitStack,
    on_service_exit: Callable[[ServiceError], None],
    store: RunStore,
    ledger: Ledger,
) -> RayExecutor:
    """Join the cluster; raises AgentrlError."""
    if importlib.util.find_spec("ray") is None:
        raise ExecutorError(
            "executor=ray needs ray, which is missing: pip install 'agentrl[ray]'",
            ExitCode.PREFLIGHT,
        )
    service = await Service.start(
        "ray",
        "runners.ray_workers",
        config.model_dump(exclude={"kind"}),
        log=run_dir / "logs" / "ray.log",
        deadline_s=START_S,
        ledger=ledger,
    )
    exits.push_async_callback(service.stop)
    if "refused" in service.info:
        raise ExecutorError(service.info["refused"], ExitCode(service.info["exit_code"]))
    service.watch(on_service_exit)
    executor = RayExecutor(service.info, store, ledger)
    await executor.open()
    return executor


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ExecutorError(f"{what}: not done within {seconds:g} s") from None

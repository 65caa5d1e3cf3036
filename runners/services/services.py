"""Start and stop the services of a run: engine, gateway, sandboxes, agent program, grader.

A campaign adds the trainer, an evaluation and a slime worker use them as they are. Invariant:
whatever happens, everything that was started is stopped again, in reverse order, and what a killed
driver left is cleaned up before anything starts.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from conf.cache import cache_root
from conf.schema import Config
from conf.sections.engine import EngineConfig
from conf.sections.executor import RayExecutorConfig
from conf.sections.rollout import RolloutConfig
from runners.engines.contract import ServedEngine
from runners.gateway.client import GatewayAdmin
from runners.gateway.refusal import GatewayError
from runners.gateway.replicas.replica_set import ReplicaSet
from runners.gateway.settings import GatewaySettings
from runners.observe.sinks import open_span_feed
from runners.records.checkpoints import keep_tokenizer
from runners.records.record import RolloutRecord
from runners.records.routing import RoutingShape
from runners.records.store import RunStore
from runners.rollouts.attempt import execute_here
from runners.rollouts.contract import AttemptContext, Execute
from runners.rollouts.harnesses.registry import make_harness
from runners.rollouts.pool import Pool
from runners.rollouts.reward import make_reward
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from runners.sandboxes.wrappers import RegisteredBackend
from runners.services.engine_service import (
    START_DEADLINE_S,
    connect_to_engine,
    start_engine,
)
from runners.services.faults.wiring import choose_gateway_module, driver_faults
from runners.services.policy import find_captured_shape
from runners.services.ray_workers.executor import RayExecutor, join
from runners.system.concurrency import Admission, TokenBucket, task_group
from runners.system.diagnostics import AttemptWatch
from runners.system.processes import ServiceError, ServiceStarter
from runners.system.processes.ledger import Ledger, StoreRecorder, reap
from runners.tasks.contract import CaptureLimits
from runners.tasks.grading import EnsureRepository, Grader, make_grader
from runners.tasks.repositories.task_repositories import TaskRepositories


@dataclass(frozen=True, slots=True)
class Services:
    """The running services of a run; valid until the context of ``start_services`` is left."""

    engine: ServedEngine
    context: AttemptContext
    store: RunStore
    """The connection through which rollouts are written."""
    execute: Execute
    """Runs an attempt, in this process or on a node of a cluster."""
    on_attempt: Callable[[RolloutRecord], None]
    """Gets the record of each attempt that is over."""

    def make_pool(
        self,
        config: RolloutConfig,
        *,
        draining: asyncio.Event,
        on_done: Callable[[RolloutRecord], None],
    ) -> Pool:
        """Return a pool that runs rollouts on these services; ``on_done`` gets final records."""
        return Pool(
            self.context,
            self.store,
            self.execute,
            admission=Admission(config.concurrency, adaptive=config.limits.adaptive),
            attempts=config.attempts,
            breaker=config.breaker,
            draining=draining,
            on_done=on_done,
            on_attempt=self.on_attempt,
        )


@asynccontextmanager
async def start_services(
    config: Config,
    store: RunStore,
    *,
    weights: Path | None,
    tokenizer: Path | None,
    version: int,
    watch: AttemptWatch,
    on_service_exit: Callable[[ServiceError], None],
    adapter: str | None = None,
    weight_plan: Path | None = None,
    version_offset: int = 0,
    engine: EngineConfig | None = None,
) -> AsyncIterator[Services]:
    """Start everything and yield it; stop it when the context is left.

    The engine serves ``weights`` of ``version``; None: those that a running engine has already.
    ``tokenizer`` None: it takes texts. ``adapter``: name of the LoRA adapters that every generation
    uses, and that the caller loads first (``Services.engine.update_weights``). ``on_service_exit``
    is called when a service exits by itself. ``weight_plan``: the file of a replayed run's weights
    (embedded engine). ``version_offset``: added to the weight versions that the engine reports.
    ``engine``: servers that run already, in place of the configuration's. Raises AgentrlError.
    """
    given = config
    if engine is not None:
        config = config.model_copy(update={"engine": engine})
    run_dir = store.run_dir
    ledger = Ledger(store)
    routing = find_captured_shape(config, weights or config.model.path)
    # Before anything starts: a service of a killed driver may hold a port or the file of turns.
    await reap(ledger)
    if tokenizer is not None:
        await asyncio.to_thread(keep_tokenizer, run_dir, tokenizer)
    async with AsyncExitStack() as exits:
        starter = ServiceStarter(run_dir, exits, on_service_exit, ledger)
        async with task_group() as starting:
            engine_url = starting.create_task(
                start_engine(
                    config,
                    starter,
                    weights,
                    tokenizer,
                    version,
                    with_adapters=adapter is not None,
                    weight_plan=weight_plan,
                )
            )
            sandboxes = starting.create_task(_make_backend(config, exits, run_dir))
            cluster = starting.create_task(_join_cluster(config, exits, store, ledger))
        faults = exits.enter_context(driver_faults(config.faults, store))
        backend = faults.wrap_backend(
            RegisteredBackend(sandboxes.result(), StoreRecorder(store, ledger))
        )
        await reap(ledger, backend)
        # Sessions end with their gateway: registered before it, this runs after it is stopped.
        exits.callback(ledger.unregister_all, "session")
        url = engine_url.result()
        admin = await _start_gateway(
            config, starter, store, url, tokenizer, routing, adapter, version_offset
        )
        await _check_public_url(config, admin, store)
        served = await connect_to_engine(
            config, exits, url, weights, version, routing, adapter=adapter
        )
        context = faults.wrap_context(_make_context(config, store.run_dir, backend, admin, watch))
        rollout_store = faults.wrap_store(store)
        recorder = StoreRecorder(rollout_store, ledger)
        execute = execute_here(recorder)
        if (executor := cluster.result()) is not None:
            exits.push_async_callback(executor.close)
            # Workers read the configuration anew, by its rules: as the user gave it.
            await executor.start(given, admin, context, recorder)
            execute = executor
        spans = await exits.enter_async_context(open_span_feed(config.observe.otlp, store))
        on_attempt = spans.add if spans is not None else _ignore
        yield Services(faults.wrap_engine(served), context, rollout_store, execute, on_attempt)


def _ignore(record: RolloutRecord) -> None:
    """Take a record of which nobody is told."""


def _make_context(
    config: Config,
    run_dir: Path,
    backend: SandboxBackend,
    admin: GatewayAdmin,
    watch: AttemptWatch,
) -> AttemptContext:
    """Return the context of every attempt."""
    repositories = TaskRepositories(backend, cache_root() / "workspaces")
    return AttemptContext(
        backend=backend,
        harness=make_harness(config.harness, config.scenario),
        grader=make_grader(backend, config, repositories.ensure, run_dir),
        gateway=admin,
        gateway_url=config.gateway.public_url,
        gateway_control=None,
        deadlines=config.rollout.deadlines,
        capture=CaptureLimits.of(config.rollout.capture),
        reward=make_reward(config.reward),
        scenario=config.scenario.kind,
        sandbox_starts=TokenBucket(config.rollout.limits.sandbox_starts_per_s),
        watch=watch,
        max_turns=config.harness.max_turns,
        ready=repositories.ensure,
    )


async def _join_cluster(
    config: Config, exits: AsyncExitStack, store: RunStore, ledger: Ledger
) -> RayExecutor | None:
    """Join the Ray cluster whose nodes run the attempts; None if this process runs them."""
    if not isinstance(config.executor, RayExecutorConfig):
        return None
    return await join(config.executor, exits, store, ledger)


async def _make_backend(config: Config, exits: AsyncExitStack, run_dir: Path) -> SandboxBackend:
    backend = await asyncio.to_thread(make_backend, config.sandbox, run_dir / "sandboxes")
    exits.push_async_callback(backend.close)
    return backend


async def _check_public_url(config: Config, admin: GatewayAdmin, store: RunStore) -> None:
    """Raise GatewayError if ``gateway.public_url`` reaches something that is not this gateway.

    A URL that cannot be reached from here is an event only: sandboxes elsewhere may reach it.
    """
    if (public_url := config.gateway.public_url) is None:
        return
    own = ", ".join(admin.urls)
    is_this_one = await admin.is_reached_at(public_url)
    if is_this_one is None:
        store.event("public_url_unreached", {"url": public_url, "gateway": own})
    elif not is_this_one:
        raise GatewayError(
            f"gateway.public_url={public_url} reaches something else than this run's gateway, "
            f"which listens at {own} on {socket.gethostname()}: make it point there"
        )


@asynccontextmanager
async def start_grader(
    config: Config, store: RunStore, *, remembers: bool = True
) -> AsyncIterator[tuple[Grader, EnsureRepository]]:
    """Yield a grader on newly made sandboxes, without policy, engine and gateway, and what makes
    the repository of a task. ``remembers``: see ``make_grader``.
    """
    ledger = Ledger(store)
    await reap(ledger)
    async with AsyncExitStack() as exits:
        sandboxes = await _make_backend(config, exits, store.run_dir)
        backend = RegisteredBackend(sandboxes, StoreRecorder(store, ledger))
        await reap(ledger, backend)
        repositories = TaskRepositories(backend, cache_root() / "workspaces")
        grader = make_grader(
            backend, config, repositories.ensure, store.run_dir, remembers=remembers
        )
        yield grader, repositories.ensure


async def _start_gateway(
    config: Config,
    starter: ServiceStarter,
    store: RunStore,
    engine_url: str,
    tokenizer: Path | None,
    routing: RoutingShape | None,
    adapter: str | None,
    version_offset: int,
) -> GatewayAdmin:
    """Start the gateway, of one process or several, and return its client."""
    settings = GatewaySettings.from_config(
        config,
        run_dir=starter.run_dir,
        engine_url=engine_url,
        tokenizer=tokenizer,
        routing=routing,
        adapter=adapter,
        version_offset=version_offset,
        monitored=True,
    )
    program = choose_gateway_module(config.faults, settings.model_dump(mode="json"))
    if config.gateway.replicas == 1:
        service = await starter.start("gateway", *program, deadline_s=START_DEADLINE_S)
        admin = GatewayAdmin(service.info["url"], service.info["admin_key"])
        starter.exits.push_async_callback(admin.close)
        return admin
    replicas = ReplicaSet(
        settings,
        config.gateway.replicas,
        program,
        starter,
        report=lambda text: store.event("gateway_process", {"text": text}),
    )
    starter.exits.push_async_callback(replicas.stop)
    return await replicas.start()

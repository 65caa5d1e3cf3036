"""What rollouts stand on: policy, engine, gateway, sandboxes, agent program and grader, started
together and ended together. A campaign adds what training needs; an evaluation takes it as it is.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.cache import cache_root
from conf.errors import ConfigError
from conf.schema import Config
from conf.sections.engine import (
    EmbeddedEngineConfig,
    EngineConfig,
    SglangEngineConfig,
    SglangLaunchEngineConfig,
)
from conf.sections.executor import RayExecutorConfig
from conf.sections.model import ModelConfig, TinyModelConfig
from conf.sections.rollout import RolloutConfig
from conf.sections.scenario import ScenarioConfig
from conf.sections.training import RoutingOffConfig, RoutingRolloutConfig
from runners.concurrency.limits import Admission, TokenBucket
from runners.concurrency.task_group import task_group
from runners.diagnostics.attempt_progress import AttemptWatch
from runners.engines.capabilities import probe_routing, require_capabilities
from runners.engines.client import HttpEngine
from runners.engines.contract import ServedEngine
from runners.engines.sglang.launch import make_server_settings
from runners.engines.sglang.workers import WorkerEngine, connect_engine
from runners.faults.wiring import choose_gateway_module, driver_faults
from runners.gateway.client import GatewayAdmin, GatewayError
from runners.gateway.settings import GatewaySettings
from runners.harnesses.registry import make_harness
from runners.processes.ledger import Ledger, reap
from runners.processes.recorder import StoreRecorder
from runners.processes.service import Service, ServiceError
from runners.ray_workers.ray import RayExecutor, join
from runners.rollouts.attempt import execute_here
from runners.rollouts.context import AttemptContext, Execute
from runners.rollouts.pool import Pool
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from runners.sandboxes.wrappers import RegisteredBackend
from runners.store.run_store import RunStore
from runners.tasks.contract import Grader
from runners.tasks.grading import make_grader
from runners.tasks.task_repositories import TaskRepositories
from runners.training.routing.shape import routing_shape
from runners.trajectory.record import RolloutRecord
from runners.trajectory.routing import RoutingShape

START_DEADLINE_S = 120.0
"""A service that loads a model on a busy machine may take this long to be ready."""

OnServiceExit = Callable[[ServiceError], None]


@dataclass(frozen=True, slots=True)
class Policy:
    """Where the policy starts from."""

    weights: Path
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Services:
    """The running services of a run; valid until the context of ``start_services`` is left."""

    engine: ServedEngine
    context: AttemptContext
    store: RunStore
    """The connection through which rollouts are written."""
    execute: Execute
    """Runs an attempt, in this process or on a node of a cluster."""

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
        )


def prepare_policy(
    model: ModelConfig, scenario: ScenarioConfig, *, progress: Callable[[str, int, int], None]
) -> Policy:
    """Return the starting weights and tokenizer; makes the tiny policy if it is not cached
    (minutes).
    """
    if model.path is not None and model.tokenizer is not None:
        return Policy(model.path, model.tokenizer)
    if isinstance(model, TinyModelConfig):
        from runners.training.bootstrap import ensure_tiny

        made = ensure_tiny(model, scenario.kind, progress=progress)
        return Policy(model.path or made, model.tokenizer or made)
    raise ConfigError(
        [f"model.path is missing: training model={model.kind} needs the starting weights"]
    )


@asynccontextmanager
async def start_services(
    config: Config,
    store: RunStore,
    *,
    weights: Path | None,
    tokenizer: Path,
    version: int,
    watch: AttemptWatch,
    on_service_exit: OnServiceExit,
) -> AsyncIterator[Services]:
    """Start everything and yield it; whatever happens, all of it is ended again.

    ``weights`` of ``version`` are served; None: those that a running engine has already.
    """
    run_dir = store.run_dir
    ledger = Ledger(store)
    routing = find_captured_shape(config, weights or config.model.path)
    await reap(ledger)  # before anything starts: an old service may hold a port or the turn file
    async with AsyncExitStack() as exits:
        async with task_group() as starting:
            engine_url = starting.create_task(
                start_engine(
                    config, exits, weights, tokenizer, version, run_dir, on_service_exit, ledger
                )
            )
            sandboxes = starting.create_task(_backend(config, exits, run_dir))
            nodes = starting.create_task(
                _nodes(config, exits, run_dir, on_service_exit, store, ledger)
            )
        faults = exits.enter_context(driver_faults(config.faults, store))
        backend = faults.wrap_backend(
            RegisteredBackend(sandboxes.result(), StoreRecorder(store, ledger))
        )
        await reap(ledger, backend)
        exits.callback(ledger.unregister_all, "session")  # they end with their gateway
        gateway = await _gateway(
            config,
            exits,
            engine_url.result(),
            tokenizer,
            run_dir,
            on_service_exit,
            ledger,
            routing,
        )
        admin = GatewayAdmin(gateway.info["url"], gateway.info["admin_key"])
        exits.push_async_callback(admin.close)
        if config.gateway.public_url is not None:
            await _refuse_elsewhere(admin, config.gateway.public_url, store)
        engine = await _fit_engine(config, exits, engine_url.result(), weights, version, routing)
        context = faults.wrap_context(
            _attempt_context(config, store.run_dir, backend, gateway.info, admin, watch)
        )
        rollout_store = faults.wrap_store(store)
        recorder = StoreRecorder(rollout_store, ledger)
        execute = execute_here(recorder)
        if (executor := nodes.result()) is not None:
            await executor.start(config, gateway.info, context, recorder)
            exits.push_async_callback(executor.close)
            execute = executor
        yield Services(faults.wrap_engine(engine), context, rollout_store, execute)


async def _fit_engine(
    config: Config,
    exits: AsyncExitStack,
    url: str,
    weights: Path | None,
    version: int,
    routing: RoutingShape | None,
) -> HttpEngine | WorkerEngine:
    """Return the engine, with the policy's weights and everything that the run asks of it."""
    workers = workers_of(config.engine)
    engine = connect_engine(url, workers, deadline_s=config.rollout.deadlines.turn_s)
    exits.push_async_callback(engine.close)
    if isinstance(config.engine, SglangEngineConfig) and weights is not None:
        await engine.update_weights(weights, version)
    if not isinstance(config.engine, EmbeddedEngineConfig):
        await require_capabilities(
            url,
            workers,
            context_tokens=config.model.max_context_tokens,
            routing=routing,
            new_weights=weights is not None,
        )
    elif routing is not None:
        await probe_routing(engine, routing, "engine=embedded")
    return engine


def _attempt_context(
    config: Config,
    run_dir: Path,
    backend: SandboxBackend,
    gateway: Mapping[str, Any],
    admin: GatewayAdmin,
    watch: AttemptWatch,
) -> AttemptContext:
    """Return the context of every attempt; ``gateway`` is the first line that it printed."""
    repositories = TaskRepositories(backend, cache_root() / "workspaces")
    return AttemptContext(
        backend=backend,
        harness=make_harness(config.harness, config.scenario),
        grader=make_grader(backend, config.task, repositories.ensure, run_dir),
        gateway=admin,
        gateway_url=config.gateway.public_url or gateway["url"],
        gateway_control=Path(gateway["control"]),
        deadlines=config.rollout.deadlines,
        reward=config.reward,
        scenario=config.scenario.kind,
        sandbox_starts=TokenBucket(config.rollout.limits.sandbox_starts_per_s),
        watch=watch,
        max_turns=config.harness.max_turns,
        ready=repositories.ensure,
    )


async def _nodes(
    config: Config,
    exits: AsyncExitStack,
    run_dir: Path,
    on_service_exit: OnServiceExit,
    store: RunStore,
    ledger: Ledger,
) -> RayExecutor | None:
    """Join the cluster whose nodes run the attempts, if it is not this process that does."""
    if not isinstance(config.executor, RayExecutorConfig):
        return None
    return await join(config.executor, run_dir, exits, on_service_exit, store, ledger)


async def _backend(config: Config, exits: AsyncExitStack, run_dir: Path) -> SandboxBackend:
    backend = await asyncio.to_thread(make_backend, config.sandbox, run_dir / "sandboxes")
    exits.push_async_callback(backend.close)
    return backend


async def _refuse_elsewhere(admin: GatewayAdmin, public_url: str, store: RunStore) -> None:
    """Raise GatewayError if sandboxes would be sent to something that is not the run's gateway."""
    here = await admin.is_reached_at(public_url)
    if here is None:
        store.event("public_url_unreached", {"url": public_url, "gateway": admin.url})
    elif not here:
        raise GatewayError(
            f"gateway.public_url={public_url} leads to something else than this run's gateway, "
            f"which listens at {admin.url} on {socket.gethostname()}: make it lead there"
        )


@asynccontextmanager
async def running_grader(config: Config, store: RunStore) -> AsyncIterator[Grader]:
    """Yield a grader with sandboxes of its own and nothing else: no policy, no gateway."""
    ledger = Ledger(store)
    await reap(ledger)
    async with AsyncExitStack() as exits:
        sandboxes = await _backend(config, exits, store.run_dir)
        backend = RegisteredBackend(sandboxes, StoreRecorder(store, ledger))
        await reap(ledger, backend)
        repositories = TaskRepositories(backend, cache_root() / "workspaces")
        yield make_grader(backend, config.task, repositories.ensure, store.run_dir)


async def start_engine(
    config: Config,
    exits: AsyncExitStack,
    weights: Path | None,
    tokenizer: Path,
    version: int,
    run_dir: Path,
    on_service_exit: OnServiceExit,
    ledger: Ledger | None = None,
) -> str:
    """Start the embedded engine, or return the URL of one that runs already."""
    engine = config.engine
    if isinstance(engine, SglangEngineConfig):
        return engine.url
    if isinstance(engine, SglangLaunchEngineConfig):
        module, start_s = "runners.engines.sglang", engine.start_s
        settings = make_server_settings(
            config, engine, weights=weights, tokenizer=tokenizer, version=version
        )
    else:
        module, start_s = "runners.engines.embedded", START_DEADLINE_S
        settings = _embedded_settings(config, engine, weights, tokenizer, version, run_dir)
    service = await Service.start_watched(
        exits,
        "engine",
        module,
        settings,
        run_dir=run_dir,
        deadline_s=start_s,
        on_exit=on_service_exit,
        ledger=ledger,
    )
    return str(service.info["url"])


def workers_of(engine: EngineConfig) -> list[str]:
    """Return the servers that make up the engine, if the configuration names them."""
    return engine.workers if isinstance(engine, SglangEngineConfig) else []


def _embedded_settings(
    config: Config,
    engine: EmbeddedEngineConfig,
    weights: Path | None,
    tokenizer: Path,
    version: int,
    run_dir: Path,
) -> dict[str, Any]:
    return {
        "model_path": str(weights),
        "tokenizer": str(tokenizer),
        "host": engine.host,
        "port": engine.port,
        "max_running_requests": engine.max_running_requests,
        "cache_tokens": engine.cache_tokens,
        "max_context_tokens": config.model.max_context_tokens,
        "threads": engine.threads or os.cpu_count() or 1,
        "weight_version": version,
        "weights": engine.weights,
        "router_noise": engine.router_noise,
        "run_dir": str(run_dir),
        "watchdog_s": config.observe.watchdog_s,
    }


def find_captured_shape(config: Config, weights: Path | None) -> RoutingShape | None:
    """Return the shape of the routing that the gateway captures, None if it captures none; raises
    ConfigError if it is to be replayed and the policy has none.
    """
    mode = config.routing_replay
    if isinstance(mode, RoutingOffConfig):
        return None
    shape, reason = None, "the policy in it is dense"
    try:
        if weights is None:
            reason = "its config.json says what the routing looks like"
        else:
            shape = routing_shape(weights)
    except (OSError, ValueError) as error:
        reason = str(error)
    if shape is None:
        at = "null" if weights is None else weights
        mend = "set model.path, or" if weights is None else "set"
        raise ConfigError(
            [
                f"routing_replay={mode.kind} needs a policy that routes, and model.path={at}: "
                f"{reason}; {mend} routing_replay=off"
            ]
        )
    return shape if isinstance(mode, RoutingRolloutConfig) else None


async def _gateway(
    config: Config,
    exits: AsyncExitStack,
    engine_url: str,
    tokenizer: Path,
    run_dir: Path,
    on_service_exit: OnServiceExit,
    ledger: Ledger,
    routing: RoutingShape | None,
) -> Service:
    settings = GatewaySettings.from_config(
        config, run_dir=run_dir, engine_url=engine_url, tokenizer=tokenizer, routing=routing
    )
    module, sent = choose_gateway_module(config.faults, settings.model_dump(mode="json"))
    return await Service.start_watched(
        exits,
        "gateway",
        module,
        sent,
        run_dir=run_dir,
        deadline_s=START_DEADLINE_S,
        on_exit=on_service_exit,
        ledger=ledger,
    )

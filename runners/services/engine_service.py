"""Start the engine's process, connect to it, and check that it can do what the run needs."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from conf.lora import find_served_lora
from conf.schema import Config
from conf.sections.engine import (
    EmbeddedEngineConfig,
    EngineConfig,
    FixedEngineConfig,
    SglangEngineConfig,
    SglangLaunchEngineConfig,
)
from runners.engines.capabilities import probe_routing, require_capabilities
from runners.engines.contract import ServedEngine
from runners.engines.fixed_engines import check_fixed_engine, connect_fixed_engine
from runners.engines.server_check import require_checks
from runners.engines.sglang import connect_engine, make_server_settings
from runners.records.routing import RoutingShape
from runners.system.processes import ServiceStarter

START_DEADLINE_S = 120.0
"""A service that loads a model on a busy machine may take this long to be ready."""


async def start_engine(
    config: Config,
    starter: ServiceStarter,
    weights: Path | None,
    tokenizer: Path | None,
    version: int,
    *,
    with_adapters: bool = False,
    weight_plan: Path | None = None,
) -> str:
    """Start the engine that the configuration names; return its URL.

    An engine that is already running (engine=sglang, vllm, openai, anthropic) is not started.
    ``weights`` of ``version`` are loaded. ``with_adapters``: it can load those of ``trainer.lora``
    beside them. ``weight_plan``: file of those that each token waits for (embedded engine). Raises
    ServiceError if it does not become ready.
    """
    engine = config.engine
    if isinstance(engine, SglangEngineConfig | FixedEngineConfig):
        return engine.url
    assert tokenizer is not None  # rules of the configuration: only an endpoint has none
    if isinstance(engine, SglangLaunchEngineConfig):
        module, start_s = "runners.engines.sglang", engine.start_s
        settings = make_server_settings(
            config,
            engine,
            weights=weights,
            tokenizer=tokenizer,
            version=version,
            lora=find_served_lora(config) if with_adapters else None,
        )
    else:
        module, start_s = "runners.engines.embedded", START_DEADLINE_S
        settings = _embedded_settings(config, engine, weights, tokenizer, version, starter.run_dir)
        if weight_plan is not None:
            settings["weight_plan"] = str(weight_plan)
    service = await starter.start("engine", module, settings, deadline_s=start_s)
    return str(service.info["url"])


def list_workers(engine: EngineConfig) -> list[str]:
    """Return the URLs of the servers behind the engine's router; empty if none are named."""
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
        "cache_tokens": engine.cache_tokens,
        "max_context_tokens": config.model.max_context_tokens,
        "threads": engine.threads or os.cpu_count() or 1,
        "weight_version": version,
        "weights": engine.weights,
        "router_noise": engine.router_noise,
        "run_dir": str(run_dir),
        "watchdog_s": config.observe.watchdog_s,
    }


async def connect_to_engine(
    config: Config,
    exits: AsyncExitStack,
    url: str,
    weights: Path | None,
    version: int,
    routing: RoutingShape | None,
    *,
    adapter: str | None = None,
) -> ServedEngine:
    """Return a client of the engine, after it has the weights and everything that the run needs.

    ``weights``: None if the engine has them already; those of a fixed engine are always its own.
    ``adapter``: name of the adapters that its generations use, and its updates load.
    Raises EngineError if the engine does not answer, EngineUnfit for a capability that it lacks.
    """
    if isinstance(config.engine, FixedEngineConfig):
        require_checks(await check_fixed_engine(config, config.engine))
        served = connect_fixed_engine(config.engine, deadline_s=config.rollout.deadlines.turn_s)
        exits.push_async_callback(served.close)
        return served
    workers = list_workers(config.engine)
    deadline_s = config.rollout.deadlines.turn_s
    engine = connect_engine(url, workers, deadline_s=deadline_s, adapter=adapter)
    exits.push_async_callback(engine.close)
    if isinstance(config.engine, SglangEngineConfig) and weights is not None:
        base = connect_engine(url, workers, deadline_s=deadline_s)
        try:
            await base.update_weights(weights, version)
        finally:
            await base.close()
    if not isinstance(config.engine, EmbeddedEngineConfig):
        await require_capabilities(
            url,
            workers,
            context_tokens=config.model.max_context_tokens,
            routing=routing,
            new_weights=weights is not None,
            lora=find_served_lora(config) if adapter is not None else None,
        )
    elif routing is not None:
        await probe_routing(engine, routing, "engine=embedded")
    return engine

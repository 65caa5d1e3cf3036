"""Read slime's arguments: its engine servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conf.errors import AgentrlError
from conf.schema import Config
from conf.sections.cluster_model import ClusterModel
from conf.sections.engine import SglangEngineConfig
from conf.sections.training import RoutingRolloutConfig
from runners.engines.client import HttpEngine

WORKERS_DEADLINE_S = 30.0


async def find_engine(args: Any, config: Config) -> SglangEngineConfig:
    """Return slime's servers as the run's engine; raises EngineError if its router does not answer.

    Generations go through the router, which knows servers that slime restarts. It drops the field
    that requests routing, so with routing replay the servers are called directly.
    """
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    router = HttpEngine(url)
    try:
        answer = await router.request_json("/workers", deadline_s=WORKERS_DEADLINE_S)
    finally:
        await router.close()
    listed: Sequence[Any] = answer["workers"]
    workers = [str(worker["url"]).rstrip("/") for worker in listed]
    if not workers:
        raise AgentrlError(f"slime's router at {url} has no workers yet")
    direct = isinstance(config.routing_replay, RoutingRolloutConfig)
    parsers = config.model.parsers if isinstance(config.model, ClusterModel) else None
    return SglangEngineConfig(
        kind="sglang",
        url=workers[0] if direct else url,
        workers=workers,
        tool_call_parser=parsers.tool if parsers else None,
        reasoning_parser=parsers.reasoning if parsers else None,
    )

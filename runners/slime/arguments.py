"""Read slime's arguments and samples: its engine servers, and the task and step of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conf.errors import AgentrlError, ConfigError
from conf.schema import Config
from conf.sections.cluster_model import ClusterModel
from conf.sections.engine import SglangEngineConfig
from conf.sections.training import RoutingRolloutConfig
from runners.engines.client import HttpEngine
from runners.slime.rewards import KEY
from runners.tasks.contract import Task

WORKERS_DEADLINE_S = 30.0


def sample_step(sample: Any) -> int | None:
    """Return the step of a sample that ``generate`` made; None if it belongs to no rollout."""
    step = ((sample.metadata or {}).get(KEY) or {}).get("step")
    return None if step is None else int(step)


def sample_task(sample: Any, tasks: Mapping[str, Task]) -> Task:
    """Return the task that a sample's row names; raises ConfigError if it is none of the run's."""
    metadata = sample.metadata or {}
    remote = metadata.get("remote_env_info") or {}
    named = [metadata.get("instance_id"), remote.get("instance_id"), sample.label]
    for name in named:
        if isinstance(name, str) and name in tasks:
            return tasks[name]
    raise ConfigError(
        [
            f"slime's sample {sample.index} names {named}, none of the {len(tasks)} tasks of the "
            "run: give --prompt-data the file of task.path, with --metadata-key metadata"
        ]
    )


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

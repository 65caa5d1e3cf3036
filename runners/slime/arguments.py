"""What slime's arguments and samples say: its servers, and which task and step a sample is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conf.errors import AgentrlError, ConfigError
from conf.schema import Config
from conf.sections.engine import EmbeddedEngineConfig, SglangEngineConfig
from conf.sections.training import RoutingRolloutConfig
from runners.engines.client import HttpEngine
from runners.slime.rewards import KEY
from runners.tasks.contract import Task

WORKERS_S = 30.0


def step_of(sample: Any) -> int | None:
    """Return the step of a sample that ``generate`` made; None for one that no rollout has."""
    step = ((sample.metadata or {}).get(KEY) or {}).get("step")
    return None if step is None else int(step)


def task_of(sample: Any, tasks: Mapping[str, Task]) -> Task:
    """Return the task that a sample's row is; raises ConfigError if it is none of the run's."""
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


async def slimes_engine(args: Any, config: Config) -> SglangEngineConfig:
    """Return slime's servers as the run's engine; raises EngineError if its router does not answer.

    Generations go through the router, which knows servers that slime restarts. It drops the field
    that asks for routing, so with routing replay the servers are called themselves.
    """
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    router = HttpEngine(url)
    try:
        found: Sequence[Any] = (await router.request_json("/workers", deadline_s=WORKERS_S))[
            "workers"
        ]
    finally:
        await router.close()
    workers = [str(worker["url"]).rstrip("/") for worker in found]
    if not workers:
        raise AgentrlError(f"slime's router at {url} has no workers yet")
    direct = isinstance(config.routing_replay, RoutingRolloutConfig)
    given = config.engine
    reads = (
        {"tool_call_parser": None, "reasoning_parser": None}
        if isinstance(given, EmbeddedEngineConfig)
        else given.model_dump(include={"tool_call_parser", "reasoning_parser"})
    )
    return SglangEngineConfig(
        kind="sglang", url=workers[0] if direct else url, workers=workers, **reads
    )

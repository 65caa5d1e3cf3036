"""Check a run before it starts: its engine, one turn of its agent program, and its summaries.

A server of ``engine=sglang_launch`` is started for the check and stopped after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from conf.errors import AgentrlError
from conf.lora import find_served_lora
from conf.schema import Config
from conf.sections.cluster_model import ClusterModel
from conf.sections.engine import EmbeddedEngineConfig, FixedEngineConfig
from conf.sections.harness import name_program
from runners.campaigns.preflight.agent_turn import (
    AgentTurn,
    PolicyFiles,
    find_policy_files,
    take_agent_turn,
)
from runners.campaigns.preflight.compaction_check import check_compaction
from runners.campaigns.preflight.tokenizer_check import PolicyFormat, ServerParser, probe_server
from runners.engines.fixed_engines import check_fixed_engine
from runners.engines.server_check import CheckResult, raise_on_failures
from runners.gateway.texts.chat_template import make_renderer
from runners.records.tokenizer import load_tokenizer
from runners.rollouts.harnesses.registry import install_harness
from runners.services.engine_service import list_workers, start_engine
from runners.services.policy import find_captured_shape
from runners.system.processes import ServiceStarter

EngineReport = list[CheckResult]
"""Questions to the engine, with their answers."""


def install_programs(
    configs: Iterable[Config], *, show: Callable[[str], None]
) -> list[AgentrlError]:
    """Install the agent programs of ``configs`` that are missing; return what went wrong.

    ``show`` is told which program is looked for.
    """
    errors: list[AgentrlError] = []
    for harness in dict.fromkeys(config.harness for config in configs):
        show(f"{name_program(harness)}: looking for the program…")
        try:
            install_harness(harness)
        except AgentrlError as error:
            errors.append(error)
    return errors


async def check_run(
    config: Config, work: Path, *, report: Callable[[EngineReport], None]
) -> tuple[EngineReport, AgentTurn]:
    """Check the engine, pass the results to ``report``, then let the agent program take a turn, and
    sum up its history if the scenario wants that.

    Files are written below ``work``. Raises AgentrlError for whatever stops a run: EngineUnfit,
    AgentTurnError.
    """
    policy = find_policy_files(config)
    async with AsyncExitStack() as exits:
        url = None
        if not isinstance(config.engine, EmbeddedEngineConfig):
            # nobody watches for its early end: the next check finds it
            starter = ServiceStarter(work, exits, on_exit=lambda error: None)
            url = await start_engine(
                config,
                starter,
                policy.weights,
                policy.tokenizer,
                0,
                with_adapters=config.run.steps > 0,
            )
        results = [] if url is None else await check_engine(config, policy, url)
        report(results)
        raise_on_failures(results)
        found = await take_agent_turn(config, policy, work / "turn", url)
    await check_compaction(config, policy, work / "compaction")
    return results, found


async def check_engine(config: Config, policy: PolicyFiles, url: str) -> EngineReport:
    """Check everything that a run of ``config`` needs of the engine at ``url``."""
    if isinstance(config.engine, FixedEngineConfig):
        return await check_fixed_engine(config, config.engine)
    return await probe_server(
        url,
        list_workers(config.engine),
        context_tokens=config.model.max_context_tokens,
        routing=find_captured_shape(config, policy.weights),
        policy_format=_load_policy_format(config, policy) if policy.own else None,
        lora=find_served_lora(config) if config.run.steps else None,
    )


def _load_policy_format(config: Config, policy: PolicyFiles) -> PolicyFormat:
    assert policy.tokenizer is not None
    tokenizer = load_tokenizer(policy.tokenizer)
    renderer = make_renderer(tokenizer, config.model.renderer, policy.tokenizer)
    return PolicyFormat(
        tokenizer,
        renderer,
        config.model.renderer,
        policy.tokenizer,
        tool_call_parser=_find_parser(config, "tool_call_parser", "tool"),
        reasoning_parser=_find_parser(config, "reasoning_parser", "reasoning"),
    )


def _find_parser(config: Config, engine_key: str, model_key: str) -> ServerParser | None:
    """Return the parser that this run uses at its servers, else the one that the model's table
    names for the servers of a job on a cluster.
    """
    name = getattr(config.engine, engine_key, None)
    if name is not None:
        return ServerParser(f"engine.{engine_key}", name, used=True)
    if isinstance(config.model, ClusterModel):
        name = getattr(config.model.parsers, model_key)
        if name is not None:
            return ServerParser(f"model.parsers.{model_key}", name, used=False)
    return None

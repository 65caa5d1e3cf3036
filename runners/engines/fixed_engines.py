"""Connect to engines whose weights are fixed, and check what an evaluation needs of them."""

from __future__ import annotations

from conf.schema import Config
from conf.sections.engine import EndpointEngineConfig, FixedEngineConfig, VllmEngineConfig
from runners.engines.contract import ServedEngine
from runners.engines.endpoints.checks import check_endpoint
from runners.engines.endpoints.client import EndpointEngine
from runners.engines.server_check import CheckResult
from runners.engines.vllm.checks import check_vllm
from runners.engines.vllm.client import VllmEngine


def connect_fixed_engine(section: FixedEngineConfig, *, deadline_s: float) -> ServedEngine:
    """Return a client of the engine; nothing is opened before its first call."""
    if isinstance(section, EndpointEngineConfig):
        return EndpointEngine(section, deadline_s=deadline_s)
    assert isinstance(section, VllmEngineConfig)
    return VllmEngine(section.url, model=section.model, deadline_s=deadline_s)


async def check_fixed_engine(config: Config, section: FixedEngineConfig) -> list[CheckResult]:
    """Run every check of ``engine=`` ``section.kind``; no failure of the engine is raised."""
    if isinstance(section, EndpointEngineConfig):
        return await check_endpoint(config, section)
    assert isinstance(section, VllmEngineConfig)
    return await check_vllm(
        section.url, model=section.model, context_tokens=config.model.max_context_tokens
    )

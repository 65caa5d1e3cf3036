"""Which agent programs there are, by the configuration's ``kind``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conf.sections.harness import (
    ClaudeCodeHarnessConfig,
    CodexHarnessConfig,
    HarnessConfig,
    MiniSweAgentHarnessConfig,
)
from conf.sections.scenario import ScenarioConfig
from runners.harnesses import claude_code, codex, mini_swe_agent, npm
from runners.harnesses.claude_code.program import program as claude_code_program
from runners.harnesses.codex.program import program as codex_program
from runners.harnesses.contract import Harness
from runners.harnesses.mini_swe_agent import program as mini
from runners.harnesses.native import NativeHarness


def _claude_code(config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig) -> Harness:
    path = npm.ready(claude_code_program(config))
    return claude_code.harness(config, scenario, path)


def _codex(config: CodexHarnessConfig, scenario: ScenarioConfig) -> Harness:
    return codex.harness(config, scenario, npm.ready(codex_program(config)))


def _mini_swe_agent(config: MiniSweAgentHarnessConfig, _: ScenarioConfig) -> Harness:
    return mini_swe_agent.harness(config, mini.ready(config))


HARNESSES: dict[str, Callable[[Any, ScenarioConfig], Harness]] = {
    "native": NativeHarness,
    "claude_code": _claude_code,
    "codex": _codex,
    "mini_swe_agent": _mini_swe_agent,
}


def make_harness(config: HarnessConfig, scenario: ScenarioConfig) -> Harness:
    """Return the agent program of a run; raises AgentrlError if it is not on this machine."""
    return HARNESSES[config.kind](config, scenario)


def install_harness(config: HarnessConfig) -> None:
    """Put a program that comes from elsewhere on this machine, unless it is there.

    Blocks; raises AgentrlError.
    """
    match config:
        case ClaudeCodeHarnessConfig():
            npm.install(claude_code_program(config))
        case CodexHarnessConfig():
            npm.install(codex_program(config))
        case MiniSweAgentHarnessConfig():
            mini.install(config)

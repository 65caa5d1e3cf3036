"""Which agent programs there are, by the configuration's ``kind``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conf import schema
from runners.harnesses import claude_code, codex, mini_swe_agent, npm
from runners.harnesses.claude_code.program import program as claude_code_program
from runners.harnesses.codex.program import program as codex_program
from runners.harnesses.contract import Harness
from runners.harnesses.mini_swe_agent import program as mini
from runners.harnesses.native import NativeHarness


def _claude_code(config: schema.ClaudeCodeHarness, scenario: schema.Scenario) -> Harness:
    path = npm.ready(claude_code_program(config))
    return claude_code.harness(config, scenario, path)


def _codex(config: schema.CodexHarness, scenario: schema.Scenario) -> Harness:
    return codex.harness(config, scenario, npm.ready(codex_program(config)))


def _mini_swe_agent(config: schema.MiniSweAgentHarness, _: schema.Scenario) -> Harness:
    return mini_swe_agent.harness(config, mini.ready(config))


HARNESSES: dict[str, Callable[[Any, schema.Scenario], Harness]] = {
    "native": NativeHarness,
    "claude_code": _claude_code,
    "codex": _codex,
    "mini_swe_agent": _mini_swe_agent,
}


def make_harness(config: schema.Harness, scenario: schema.Scenario) -> Harness:
    """Return the agent program of a run; raises AgentrlError if it is not on this machine."""
    return HARNESSES[config.kind](config, scenario)


def install_harness(config: schema.Harness) -> None:
    """Put a program that comes from elsewhere on this machine, unless it is there.

    Blocks; raises AgentrlError.
    """
    match config:
        case schema.ClaudeCodeHarness():
            npm.install(claude_code_program(config))
        case schema.CodexHarness():
            npm.install(codex_program(config))
        case schema.MiniSweAgentHarness():
            mini.install(config)

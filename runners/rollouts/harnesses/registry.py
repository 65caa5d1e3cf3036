"""The agent programs, by the configuration's ``kind``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conf.sections.harness import (
    TASK,
    ClaudeCodeHarnessConfig,
    CodexHarnessConfig,
    CommandHarnessConfig,
    CustomHarnessConfig,
    HarnessConfig,
    MiniSweAgentHarnessConfig,
)
from conf.sections.scenario import ScenarioConfig
from runners.rollouts.contract import Harness
from runners.rollouts.harnesses import claude_code, codex, installation
from runners.rollouts.harnesses.command import CommandHarness, find_command, install_command
from runners.rollouts.harnesses.guarded import GuardedHarness
from runners.rollouts.harnesses.mini_swe_agent import harness as mini_swe_agent
from runners.rollouts.harnesses.mini_swe_agent import package
from runners.rollouts.harnesses.native import NativeHarness
from runners.rollouts.harnesses.prompted import PromptedHarness
from runners.system.plugins import load_plugin


def _make_claude_code(config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig) -> Harness:
    program = installation.find_program(claude_code.npm_program(config))
    return claude_code.make_harness(config, scenario, program)


def _make_codex(config: CodexHarnessConfig, scenario: ScenarioConfig) -> Harness:
    program = installation.find_program(codex.npm_program(config))
    return codex.make_harness(config, scenario, program)


def _make_mini_swe_agent(config: MiniSweAgentHarnessConfig, _: ScenarioConfig) -> Harness:
    return mini_swe_agent.make_harness(config, package.find_package(config))


def _make_command(config: CommandHarnessConfig, _: ScenarioConfig) -> Harness:
    if config.install is not None:
        find_command(config)  # raises now rather than in every attempt
    return CommandHarness(config)


def _load_custom(config: CustomHarnessConfig, _: ScenarioConfig) -> Harness:
    return GuardedHarness(config.target, load_plugin(config, Harness, "harness"))


HARNESSES: dict[str, Callable[[Any, ScenarioConfig], Harness]] = {
    "native": NativeHarness,
    "claude_code": _make_claude_code,
    "codex": _make_codex,
    "mini_swe_agent": _make_mini_swe_agent,
    "command": _make_command,
    "custom": _load_custom,
}


def make_harness(config: HarnessConfig, scenario: ScenarioConfig) -> Harness:
    """Return the agent program of a run; raises AgentrlError if it is not on this machine."""
    harness = HARNESSES[config.kind](config, scenario)
    return harness if config.prompt == TASK else PromptedHarness(harness, config.prompt)


def install_harness(config: HarnessConfig) -> None:
    """Install a third-party program on this machine, unless it is there.

    Blocks; raises AgentrlError.
    """
    match config:
        case ClaudeCodeHarnessConfig():
            installation.install_program(claude_code.npm_program(config))
        case CodexHarnessConfig():
            installation.install_program(codex.npm_program(config))
        case MiniSweAgentHarnessConfig():
            package.install_package(config)
        case CommandHarnessConfig():
            install_command(config)

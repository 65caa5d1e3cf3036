"""Which agent programs there are, by the configuration's ``kind``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conf import schema
from runners.harnesses.claude_code import ClaudeCodeHarness, program
from runners.harnesses.contract import Harness
from runners.harnesses.native import NativeHarness


def _claude_code(config: schema.ClaudeCodeHarness, scenario: schema.Scenario) -> Harness:
    return ClaudeCodeHarness(config, scenario, program.ready(config))


HARNESSES: dict[str, Callable[[Any, schema.Scenario], Harness]] = {
    "native": NativeHarness,
    "claude_code": _claude_code,
}


def make_harness(config: schema.Harness, scenario: schema.Scenario) -> Harness:
    """Return the agent program of a run; raises AgentrlError if it is not on this machine."""
    return HARNESSES[config.kind](config, scenario)


def install_harness(config: schema.Harness) -> None:
    """Put a program that comes from elsewhere on this machine, unless it is there.

    Blocks; raises AgentrlError.
    """
    if isinstance(config, schema.ClaudeCodeHarness):
        program.install(config)

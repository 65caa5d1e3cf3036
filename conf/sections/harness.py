"""Configuration of the agent program (``harness=…``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.plugin import PluginConfig
from conf.sections.section import Section


class NativeHarnessConfig(Section):
    """agentrl's own small agent program."""

    kind: Literal["native"]
    max_turns: PositiveInt
    """Model calls before the agent stops."""
    max_tokens: PositiveInt
    """``max_tokens`` of its requests."""
    memory_mb: PositiveInt
    """Default of ``sandbox.memory_mb``."""
    cpu_s: PositiveInt
    """Default of ``sandbox.cpu_s``."""


class ClaudeCodeHarnessConfig(Section):
    """Claude Code, the unmodified npm package."""

    kind: Literal["claude_code"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The only version that is accepted."""
    binary: Path | None
    """The program, or an npm tarball that holds it; null: the one ``agentrl check`` installed."""
    max_turns: PositiveInt
    """Model calls before it is stopped, including those of sub-agents and compactions."""
    max_tokens: PositiveInt
    """``max_tokens`` of its requests."""
    memory_mb: PositiveInt
    """Address space that it needs: default and least value of ``sandbox.memory_mb``."""
    cpu_s: PositiveInt
    """Default of ``sandbox.cpu_s``."""


class CodexHarnessConfig(Section):
    """Codex, the unmodified npm package."""

    kind: Literal["codex"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The only version that is accepted."""
    binary: Path | None
    """The program, or an npm tarball that holds it; null: the one ``agentrl check`` installed."""
    max_turns: PositiveInt
    """Model calls before it is stopped, including those of sub-agents and compactions."""
    memory_mb: PositiveInt
    """Address space that it needs: default and least value of ``sandbox.memory_mb``."""
    cpu_s: PositiveInt
    """Default of ``sandbox.cpu_s``."""


class MiniSweAgentHarnessConfig(Section):
    """mini-swe-agent, the unmodified PyPI package."""

    kind: Literal["mini_swe_agent"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The only version that is accepted."""
    directory: Path | None
    """Directory that ``pip install --target`` made, for the Python inside the sandbox; null: the
    one ``agentrl check`` installed.
    """
    max_turns: PositiveInt
    """Model calls before it stops."""
    max_tokens: PositiveInt
    """``max_tokens`` of its requests."""
    command_s: PositiveInt
    """Time limit of one of its shell commands, in seconds."""
    memory_mb: PositiveInt
    """Default of ``sandbox.memory_mb``."""
    cpu_s: PositiveInt
    """Default of ``sandbox.cpu_s``."""


class CustomHarnessConfig(PluginConfig):
    """An agent program of a plug-in (``runners/harnesses/contract.py``)."""

    kind: Literal["custom"]
    max_turns: PositiveInt
    """Model calls of an attempt; the gateway refuses more."""
    memory_mb: PositiveInt
    """Default of ``sandbox.memory_mb``."""
    cpu_s: PositiveInt
    """Default of ``sandbox.cpu_s``."""


ExternalHarnessConfig = ClaudeCodeHarnessConfig | CodexHarnessConfig | MiniSweAgentHarnessConfig
"""Third-party programs, which are installed apart from agentrl."""
HarnessConfig = Annotated[
    NativeHarnessConfig | ExternalHarnessConfig | CustomHarnessConfig,
    Field(discriminator="kind"),
]


PROMPT_TOKENS = {"claude_code": 7000, "codex": 6000, "mini_swe_agent": 1000}
"""Approximate tokens of a program's first prompt: its system prompt and its tools."""

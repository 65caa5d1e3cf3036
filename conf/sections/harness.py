"""The agent program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.section import Section


class NativeHarnessConfig(Section):
    """agentrl's own small agent program."""

    kind: Literal["native"]
    max_turns: PositiveInt
    """Model calls before the agent gives up."""
    max_tokens: PositiveInt
    """``max_tokens`` it asks for in each turn."""
    memory_mb: PositiveInt
    """``sandbox.memory_mb`` unless that is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


class ClaudeCodeHarnessConfig(Section):
    """Claude Code, the unmodified npm package."""

    kind: Literal["claude_code"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The one version that is run."""
    binary: Path | None
    """The program, or an npm tarball that holds it; null: what ``agentrl check`` installed."""
    max_turns: PositiveInt
    """Model calls before it is stopped, its sub-agents' and summaries' included."""
    max_tokens: PositiveInt
    """``max_tokens`` it asks for in each turn."""
    memory_mb: PositiveInt
    """Address space that it needs: ``sandbox.memory_mb`` unless more is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


class CodexHarnessConfig(Section):
    """Codex, the unmodified npm package."""

    kind: Literal["codex"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The one version that is run."""
    binary: Path | None
    """The program, or an npm tarball that holds it; null: what ``agentrl check`` installed."""
    max_turns: PositiveInt
    """Model calls before it is stopped, its sub-agents' and summaries' included."""
    memory_mb: PositiveInt
    """Address space that it needs: ``sandbox.memory_mb`` unless more is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


class MiniSweAgentHarnessConfig(Section):
    """mini-swe-agent, the unmodified PyPI package."""

    kind: Literal["mini_swe_agent"]
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    """The one version that is run."""
    directory: Path | None
    """Directory that ``pip install --target`` made, for the Python inside the sandbox; null: what
    ``agentrl check`` installed.
    """
    max_turns: PositiveInt
    """Model calls before it gives up."""
    max_tokens: PositiveInt
    """``max_tokens`` it asks for in each turn."""
    command_s: PositiveInt
    """Seconds that one of its shell commands may take."""
    memory_mb: PositiveInt
    """``sandbox.memory_mb`` unless that is given."""
    cpu_s: PositiveInt
    """``sandbox.cpu_s`` unless that is given."""


HarnessConfig = Annotated[
    NativeHarnessConfig | ClaudeCodeHarnessConfig | CodexHarnessConfig | MiniSweAgentHarnessConfig,
    Field(discriminator="kind"),
]


PROMPT_TOKENS = {"claude_code": 7000, "codex": 6000, "mini_swe_agent": 1000}
"""About what a program's system prompt and tools are, before any work."""

"""Configuration of the agent program (``harness=…``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveInt

from conf.sections.extensions import (
    McpServerConfig,
    Name,
    SubagentConfig,
    Text,
    ToolName,
    ToolPattern,
    ToolSubagentConfig,
)
from conf.sections.plugin import PluginConfig
from conf.sections.section import Follows, Section, expecting
from conf.suggestions import suggest

TASK = "{problem_statement}"
"""Stands for the task's statement in a prompt."""


Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$"), expecting("a version such as 2.1.210")]
ProgramName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,40}$"),
    expecting("a name of at most 41 lower-case letters, digits, _, . and -"),
]


MaxTokens = Annotated[
    PositiveInt,
    Follows("${sampling.max_new_tokens}"),
    Field(description="``max_tokens`` of its requests; ``sampling.max_new_tokens`` is the limit."),
]


def _check_prompt(text: str) -> str:
    if TASK not in text:
        raise ValueError(f"does not contain {TASK}: the agent would not know its task")
    return text


class HarnessSection(Section):
    """Keys of every agent program."""

    prompt: Annotated[str, AfterValidator(_check_prompt)] = TASK
    """Its prompt; ``{problem_statement}`` is the task's."""
    max_turns: PositiveInt = 100
    """Model calls of an attempt, those of sub-agents and compactions included; the gateway refuses
    more.
    """
    memory_mb: PositiveInt = 4096
    """Address space that it needs, in MB: default of ``sandbox.memory_mb``, which may not be less
    with a program of others than ours.
    """
    cpu_s: PositiveInt = 1800
    """Default of ``sandbox.cpu_s``."""


class ExtensibleHarness(HarnessSection):
    """Keys of a program that takes more than ours."""

    system_prompt: Text | None = None
    """Words that are added to its own system prompt; null: none."""
    mcp_servers: Mapping[Name, McpServerConfig] = Field(default_factory=dict)
    """Servers of further tools, started in the sandbox: ``{NAME: {command: …, args: […], env: {…},
    directory: …}}``.
    """
    arguments: tuple[str, ...] = ()
    """Further arguments of its command line, after ours."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Further variables of its environment; those that we set win."""

    def __hash__(self) -> int:
        """Hash of all values; a mapping has none of its own."""
        return hash(self.model_dump_json())


class NativeHarnessConfig(HarnessSection):
    """agentrl's own small agent program."""

    kind: Literal["native"]
    max_tokens: MaxTokens


class ClaudeCodeHarnessConfig(ExtensibleHarness):
    """Claude Code, the unmodified npm package."""

    kind: Literal["claude_code"]
    agents: Mapping[Name, ToolSubagentConfig] = Field(default_factory=dict)
    """Further sub-agents: ``{NAME: {description: …, prompt: …, tools: [Read, Grep]}}``."""
    tools: tuple[ToolName, ...] | None = None
    """Its own tools that it has; null: those of the scenario, which with sub-agents cannot be
    replaced.
    """
    disallowed_tools: tuple[ToolPattern, ...] = ()
    """Tools, or uses of tools, that it refuses, such as ``'Bash(git push *)'``."""
    version: Version
    """The only version that is accepted."""
    binary: Path | None = None
    """The program, or an npm tarball that holds it; null: the one ``agentrl check`` installed."""
    max_tokens: MaxTokens


class CodexHarnessConfig(ExtensibleHarness):
    """Codex, the unmodified npm package."""

    kind: Literal["codex"]
    agents: Mapping[Name, SubagentConfig] = Field(default_factory=dict)
    """Further roles of its sub-agents, with scenario=subagent or mixed: ``{NAME: {description: …,
    prompt: …}}``. It has no lists of tools.
    """
    version: Version
    """The only version that is accepted."""
    binary: Path | None = None
    """The program, or an npm tarball that holds it; null: the one ``agentrl check`` installed."""


class MiniSweAgentHarnessConfig(HarnessSection):
    """mini-swe-agent, the unmodified PyPI package."""

    kind: Literal["mini_swe_agent"]
    version: Version
    """The only version that is accepted."""
    directory: Path | None = None
    """Directory that ``pip install --target`` made, for the Python inside the sandbox; null: the
    one ``agentrl check`` installed.
    """
    max_tokens: MaxTokens
    command_s: ClassVar[int] = 60
    """Time limit of one of its shell commands, in seconds."""


PLACEHOLDERS = ("base_url", "api_key", "model", "prompt_file", "directory", "workdir")
_MARK = re.compile(r"(?<!\$)\{([a-z_]+)\}")


def _check_placeholders(text: str) -> str:
    for name in _MARK.findall(text):
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            hint = suggest(name, PLACEHOLDERS, "did you mean {{{}}}? ")
            raise ValueError(f"has {{{name}}}, which stands for nothing: {hint}(known: {known})")
    return text


def _check_run(command: str) -> str:
    if "{api_key}" in command:
        raise ValueError("has {api_key}, which every process could read: pass it by harness.env")
    return _check_placeholders(command)


Template = Annotated[str, AfterValidator(_check_placeholders)]
"""Text in which ``{base_url}`` and the other ``PLACEHOLDERS`` are replaced."""


def _check_home_path(path: str) -> str:
    place = PurePosixPath(path)
    if place.is_absolute() or ".." in place.parts or path.endswith("/") or not place.name:
        raise ValueError("must be a file below the home directory, such as .config/agent.json")
    return path


class HomeFile(Section):
    """A file in the home directory of the sandbox."""

    path: Annotated[str, AfterValidator(_check_home_path)]
    """Relative to the home directory."""
    content: Template


class CommandHarnessConfig(HarnessSection):
    """Any agent program, by the commands that install and run it.

    In ``run``, ``env`` and ``files`` stand ``{base_url}`` for the gateway's address (without
    ``/v1``), ``{api_key}`` for the session's key (not in ``run``), ``{model}`` for the name of the
    model, ``{prompt_file}`` for a file with the prompt, ``{directory}`` for what ``install`` made,
    and ``{workdir}`` for the repository.
    """

    kind: Literal["command"]
    name: ProgramName = "command"
    """Name in records and messages."""
    install: str | None = None
    """Shell command that installs the program on this machine into the directory in which it is
    started; null: the program is in the sandbox already. ``agentrl check`` runs it once.
    """
    run: Annotated[str, AfterValidator(_check_run)]
    """Shell command, started in the repository; the prompt is on its stdin too."""
    env: dict[str, Template] = Field(default_factory=dict)
    """Variables of its environment; the key belongs here, and not into ``run``."""
    files: tuple[HomeFile, ...] = ()
    """Files of its home directory: a list of ``{path: …, content: …}``."""

    def __hash__(self) -> int:
        """Hash of all values; a mapping has none of its own."""
        return hash(self.model_dump_json())


class CustomHarnessConfig(PluginConfig, HarnessSection):
    """An agent program of a plug-in (``runners/rollouts/contract.py``)."""

    kind: Literal["custom"]


ExternalHarnessConfig = ClaudeCodeHarnessConfig | CodexHarnessConfig | MiniSweAgentHarnessConfig
"""Third-party programs, which are installed apart from agentrl."""
UserHarnessConfig = CommandHarnessConfig | CustomHarnessConfig
"""Programs of the user's own, of which no version and no limit of an answer is known."""
HarnessConfig = Annotated[
    NativeHarnessConfig | ExternalHarnessConfig | UserHarnessConfig,
    Field(discriminator="kind"),
]


def name_program(harness: HarnessConfig) -> str:
    """Return the name of an agent program, for messages."""
    match harness:
        case CommandHarnessConfig(name=name):
            return name
        case CustomHarnessConfig(target=target):
            return target
    return harness.kind


PROMPT_TOKENS = {"claude_code": 7000, "codex": 6000, "mini_swe_agent": 1000}
"""Approximate tokens of a program's first prompt: its system prompt and its tools."""

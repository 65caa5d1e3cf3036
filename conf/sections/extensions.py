"""Extensions of an agent program: what a user adds to its prompt, its tools and its sub-agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from conf.sections.section import Section, expecting

MAX_TEXT = 30_000
"""Characters of a text that goes into one argument of a command line: Linux takes 128 KiB."""


def _check_text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("is empty, or has a NUL character, which no command line can hold")
    return text


Text = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_check_text)]
"""Words for a program, which go into its command line."""
Name = Annotated[
    str,
    Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$"),
    expecting("a name of at most 41 lower-case letters, digits, _ and -, a letter first"),
]
"""Name that a user chooses; programs put it into the names of tools and of their own keys."""
Variable = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    expecting("the name of an environment variable, such as LANG"),
]
"""Name of a variable of an environment."""
ToolName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$"),
    expecting("the name of a tool, such as Bash or mcp__docs__lookup"),
]
"""Name of a tool, such as ``Bash`` or ``mcp__docs__lookup``."""
ToolPattern = Annotated[
    str,
    Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(\([^\x00-\x1f]+\))?$"),
    expecting("a tool such as Bash, or uses of it such as Bash(git push *)"),
]
"""A tool, or some uses of it: ``Bash(git push *)``."""


class McpServerConfig(Section):
    """A server of tools (Model Context Protocol), which the program starts in the sandbox.

    It talks over stdin and stdout: a sandbox reaches no other address than the gateway's. The
    policy's commands can read whatever it is given.
    """

    command: Text
    """Program of the sandbox."""
    args: tuple[Text, ...] = ()
    """Its arguments; ``{directory}`` here and in ``command`` is the directory below."""
    env: Mapping[Variable, str] = Field(default_factory=dict)
    """Variables of its environment."""
    directory: Path | None = None
    """Directory of this machine that is mounted read-only in every sandbox; null: none."""


class SubagentConfig(Section):
    """A sub-agent that the program offers to its main agent."""

    description: Text
    """Purpose, which the main agent reads."""
    prompt: Text
    """Its instructions."""


class ToolSubagentConfig(SubagentConfig):
    """A sub-agent with a list of tools."""

    tools: tuple[ToolName, ...] | None = None
    """Tools of the program that it has; null: all that the main agent has."""

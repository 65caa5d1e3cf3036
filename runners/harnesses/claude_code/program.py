"""Claude Code itself: the program of the npm package ``@anthropic-ai/claude-code``."""

from __future__ import annotations

from conf import programs
from conf.sections.harness import ClaudeCodeHarnessConfig
from runners.harnesses.npm import NpmProgram


def program(config: ClaudeCodeHarnessConfig) -> NpmProgram:
    """Return which program it is, and where."""
    return NpmProgram(
        kind=config.kind,
        version=config.version,
        binary=config.binary,
        path=programs.claude_code_path(config),
        package="@anthropic-ai/claude-code",
        platform_package="@anthropic-ai/claude-code-linux-{platform}@{version}",
        members=("claude", "bin/claude.exe"),
    )

"""Codex itself: the program of the npm package ``@openai/codex``, one static file."""

from __future__ import annotations

from conf import programs
from conf.sections.harness import CodexHarnessConfig
from runners.harnesses.npm import NpmProgram


def program(config: CodexHarnessConfig) -> NpmProgram:
    """Return which program it is, and where."""
    return NpmProgram(
        kind=config.kind,
        version=config.version,
        binary=config.binary,
        path=programs.codex_path(config),
        package="@openai/codex",
        platform_package="@openai/codex@{version}-linux-{platform}",
        members=("vendor/*/bin/codex",),
    )

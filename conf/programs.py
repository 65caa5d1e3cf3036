"""The paths of the agent programs that a configuration names.

The pre-flight looks for a program at the path from which a run starts it: both ask here.
"""

from __future__ import annotations

from pathlib import Path

from conf.cache import cache_root
from conf.sections.harness import (
    ClaudeCodeHarnessConfig,
    CodexHarnessConfig,
    HarnessConfig,
    MiniSweAgentHarnessConfig,
)

TARBALL_SUFFIXES = (".tgz", ".tar.gz")
PROGRAM_NAMES = {
    "claude_code": "Claude Code",
    "codex": "Codex",
    "mini_swe_agent": "mini-swe-agent",
}
"""Names of the programs of other projects, by the harness's ``kind``."""


def is_tarball(path: Path | None) -> bool:
    """Return whether ``harness.binary`` is an npm tarball, which must be unpacked first."""
    return path is not None and path.name.endswith(TARBALL_SUFFIXES)


def program_path(harness: HarnessConfig) -> Path | None:
    """Return the path of a harness's program, which need not exist; None for our own harness."""
    match harness:
        case ClaudeCodeHarnessConfig():
            return claude_code_path(harness)
        case CodexHarnessConfig():
            return codex_path(harness)
        case MiniSweAgentHarnessConfig():
            return mini_swe_agent_path(harness)
    return None


def program_override(harness: HarnessConfig) -> str:
    """Return the override that names the user's own program; empty if there is none."""
    match harness:
        case ClaudeCodeHarnessConfig() | CodexHarnessConfig() if harness.binary is not None:
            return f"harness.binary={harness.binary}"
        case MiniSweAgentHarnessConfig() if harness.directory is not None:
            return f"harness.directory={harness.directory}"
    return ""


def claude_code_path(harness: ClaudeCodeHarnessConfig) -> Path:
    """Return the path of Claude Code, which need not exist: the configured one, or in the cache."""
    return (
        _configured_path(harness.binary) or _cache_path("claude-code", harness.version) / "claude"
    )


def codex_path(harness: CodexHarnessConfig) -> Path:
    """Return the path of Codex, which need not exist: the configured one, or in the cache."""
    return _configured_path(harness.binary) or _cache_path("codex", harness.version) / "codex"


def mini_swe_agent_path(harness: MiniSweAgentHarnessConfig) -> Path:
    """Return the directory of mini-swe-agent, which need not exist: configured, or in the cache."""
    if harness.directory is not None:
        return harness.directory.absolute()
    return _cache_path("mini-swe-agent", harness.version)


def _configured_path(binary: Path | None) -> Path | None:
    return None if binary is None or is_tarball(binary) else binary.absolute()


def _cache_path(name: str, version: str) -> Path:
    return cache_root() / "programs" / f"{name}-{version}"

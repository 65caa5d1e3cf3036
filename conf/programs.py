"""Where the agent programs that a configuration names lie on this machine.

Said once for both who must agree on it: what runs a program, and what looks for it before a run.
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

TARBALL = (".tgz", ".tar.gz")
TITLES = {
    "claude_code": "Claude Code",
    "codex": "Codex",
    "mini_swe_agent": "mini-swe-agent",
}
"""What each program that comes from elsewhere is called, by the configuration's ``kind``."""


def is_tarball(path: Path | None) -> bool:
    """Return whether ``harness.binary`` is an npm tarball, which must be unpacked first."""
    return path is not None and path.name.endswith(TARBALL)


def program_path(harness: HarnessConfig) -> Path | None:
    """Return where a harness's program is, whether or not it is there; None: it is our own."""
    match harness:
        case ClaudeCodeHarnessConfig():
            return claude_code(harness)
        case CodexHarnessConfig():
            return codex(harness)
        case MiniSweAgentHarnessConfig():
            return mini_swe_agent(harness)
    return None


def user_override(harness: HarnessConfig) -> str:
    """Return the override that names a program of the user's own; empty: none does."""
    match harness:
        case ClaudeCodeHarnessConfig() | CodexHarnessConfig() if harness.binary is not None:
            return f"harness.binary={harness.binary}"
        case MiniSweAgentHarnessConfig() if harness.directory is not None:
            return f"harness.directory={harness.directory}"
    return ""


def claude_code(harness: ClaudeCodeHarnessConfig) -> Path:
    """Return Claude Code's path, whether or not it is there: as given, or in our cache."""
    return _given_path(harness.binary) or _cache_path("claude-code", harness.version) / "claude"


def codex(harness: CodexHarnessConfig) -> Path:
    """Return Codex's path, whether or not it is there: as given, or in our cache."""
    return _given_path(harness.binary) or _cache_path("codex", harness.version) / "codex"


def mini_swe_agent(harness: MiniSweAgentHarnessConfig) -> Path:
    """Return mini-swe-agent's directory, whether or not it is there: as given, or in our cache."""
    if harness.directory is not None:
        return harness.directory.absolute()
    return _cache_path("mini-swe-agent", harness.version)


def _given_path(binary: Path | None) -> Path | None:
    return None if binary is None or is_tarball(binary) else binary.absolute()


def _cache_path(name: str, version: str) -> Path:
    return cache_root() / "programs" / f"{name}-{version}"

"""Paths of the third-party agent programs on this machine.

Declared once for both sides that must agree: the harness that runs a program, and the pre-flight
check that looks for it before a run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from conf.cache import cache_root
from conf.sections.harness import (
    ClaudeCodeHarnessConfig,
    CodexHarnessConfig,
    CommandHarnessConfig,
    ExternalHarnessConfig,
    MiniSweAgentHarnessConfig,
)

TARBALL_SUFFIXES = (".tgz", ".tar.gz")
PROGRAM_NAMES = {
    "claude_code": "Claude Code",
    "codex": "Codex",
    "mini_swe_agent": "mini-swe-agent",
}
"""Display name of each third-party program, by the configuration's ``kind``."""


def is_tarball(path: Path | None) -> bool:
    """Return whether ``harness.binary`` is an npm tarball, which must be unpacked first."""
    return path is not None and path.name.endswith(TARBALL_SUFFIXES)


def program_path(harness: ExternalHarnessConfig) -> Path:
    """Return where a program is or will be: the path the user gave, else a path in our cache."""
    match harness:
        case MiniSweAgentHarnessConfig(directory=Path() as directory):
            return directory.absolute()
        case MiniSweAgentHarnessConfig():
            return _cache_folder("mini-swe-agent", harness.version)
        case ClaudeCodeHarnessConfig(binary=Path() as binary) if not is_tarball(binary):
            return binary.absolute()
        case ClaudeCodeHarnessConfig():
            return _cache_folder("claude-code", harness.version) / "claude"
        case CodexHarnessConfig(binary=Path() as binary) if not is_tarball(binary):
            return binary.absolute()
        case CodexHarnessConfig():
            return _cache_folder("codex", harness.version) / "codex"


def command_directory(harness: CommandHarnessConfig) -> Path:
    """Return the directory that the command ``install`` makes; another command makes another."""
    digest = hashlib.sha256((harness.install or "").encode()).hexdigest()[:12]
    return _cache_folder(harness.name, digest)


def program_override(harness: ExternalHarnessConfig) -> str:
    """Return the override that names the user's own program, "" without one."""
    match harness:
        case ClaudeCodeHarnessConfig() | CodexHarnessConfig() if harness.binary is not None:
            return f"harness.binary={harness.binary}"
        case MiniSweAgentHarnessConfig() if harness.directory is not None:
            return f"harness.directory={harness.directory}"
    return ""


def _cache_folder(name: str, version: str) -> Path:
    return cache_root() / "programs" / f"{name}-{version}"

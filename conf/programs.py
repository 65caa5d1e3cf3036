"""Where the agent programs that a configuration names lie on this machine.

Said once for both who must agree on it: what runs a program, and what looks for it before a run.
"""

from __future__ import annotations

from pathlib import Path

from conf.cache import cache_root
from conf.schema import ClaudeCodeHarness

TARBALL = (".tgz", ".tar.gz")


def is_tarball(path: Path | None) -> bool:
    """Whether ``harness.binary`` is an npm tarball, which must be unpacked first."""
    return path is not None and path.name.endswith(TARBALL)


def claude_code(harness: ClaudeCodeHarness) -> Path:
    """Return Claude Code's path, whether or not it is there: as given, or in our cache."""
    if harness.binary is not None and not is_tarball(harness.binary):
        return harness.binary.absolute()
    return cache_root() / "programs" / f"claude-code-{harness.version}" / "claude"

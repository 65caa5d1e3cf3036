"""The contract of machines elsewhere in which sandboxes are made: virtual machines, containers.

Invariant: every call can be repeated. A call whose answer is lost is retried, so a script may run
twice, even at the same time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from runners.sandboxes.contract import SandboxError

AGENT = "agent"
AGENT_ID = 61000
"""User and group id of commands inside; high, so that no image uses it for another user."""
STATE = "/var/lib/agentrl"
"""Directory inside for our own files; only root can read it."""


class BusyError(SandboxError):
    """A script failed on a machine that runs: there may be no process or memory left for it."""


class Machine(Protocol):
    """Short calls to a machine, all with root rights."""

    async def run_script(self, script: str, *, deadline_s: float) -> bytes:
        """Run a short script as root and return its output.

        Raises SandboxError; BusyError if it is worth to repeat the call.
        """
        ...

    async def write_file(self, path: str, content: bytes | Path) -> None:
        """Write a file as root, making its directories; a Path is streamed. Raises SandboxError."""
        ...

    async def read_file(self, path: str, target: Path) -> None:
        """Stream a file to ``target`` on the host; raises SandboxError."""
        ...

    async def terminate(self) -> None:
        """End the machine and everything in it; does nothing if it is gone. Raises SandboxError."""
        ...

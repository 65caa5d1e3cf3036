"""A machine that sandboxes are made of elsewhere: a virtual machine, a container."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

AGENT = "agent"
AGENT_ID = 61000
"""User and group id of commands inside: one that no image gives to anybody else."""
STATE = "/var/lib/agentrl"
"""Directory inside for our own files; root's alone."""


class Machine(Protocol):
    """What a backend knows of a machine: short calls with root rights, all safe to repeat.

    A call whose answer is lost is made again, so a script may be run twice, also at once.
    """

    async def sh(self, script: str, *, deadline_s: float) -> bytes:
        """Run a short script as root and return its output; raises SandboxError."""
        ...

    async def put(self, path: str, content: bytes | Path) -> None:
        """Write a file as root, making its directories; a Path is streamed. Raises SandboxError."""
        ...

    async def get(self, path: str, target: Path) -> None:
        """Stream a file to the host; raises SandboxError."""
        ...

    async def end(self) -> None:
        """End it with everything in it; one that is gone is fine. Raises SandboxError."""
        ...

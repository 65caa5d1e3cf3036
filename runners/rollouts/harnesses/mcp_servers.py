"""Servers of further tools (Model Context Protocol): their directories in the sandbox.

The agent program starts them itself. They are its children, so the gateway refuses their requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conf.sections.extensions import McpServerConfig
from runners.rollouts.harnesses.installation import ProgramError

INSIDE = "/opt/agentrl/mcp"
"""Folder of their directories in the sandbox."""
START_S = 60
"""Seconds that a server may take to start; a program begins its work when all have started."""


def mount_servers(servers: Mapping[str, McpServerConfig]) -> dict[str, Path]:
    """Return the servers' directories, by their paths inside; raises ProgramError."""
    found = {name: server.directory for name, server in servers.items() if server.directory}
    for name, directory in found.items():
        if not directory.is_dir():
            raise ProgramError(
                f"harness.mcp_servers.{name}.directory={directory} is not a directory: set it to "
                "the one that holds the server, or to null"
            )
    return {f"{INSIDE}/{name}": directory.absolute() for name, directory in found.items()}


def fill_directory(name: str, text: str) -> str:
    """Return a word of a server's command line with its directory in it."""
    return text.replace("{directory}", f"{INSIDE}/{name}")

"""No isolation: a process of the host with resource limits. For machines where nothing else works.

A command can write wherever the user can, use the network and see all processes. What it leaves
running is found by the mark in its environment; a process that clears its environment escapes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runners.sandboxes.local.isolation import Interior, Place


class Plain:
    """Mounts are symbolic links below the sandbox's home; arguments that name one are rewritten."""

    name = "none"
    namespaced = False

    def __init__(self, interior: Interior) -> None:
        self._interior = interior

    def prepare(self, place: Place) -> None:
        """Link the mounts."""
        for inside, host in place.mounts.items():
            link = self._outside(place, inside)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(host)
        (place.home / "tmp").mkdir()

    def workdir(self, place: Place) -> str:
        """Return the workspace's path on the host."""
        return str(place.workspace)

    def environment(self, place: Place) -> dict[str, str]:
        """Return the environment of commands."""
        environment = self._interior.environment(str(self._interior.root / "bin"))
        temporary = str(place.home / "tmp")
        return {**environment, "HOME": temporary, "TMPDIR": temporary}

    def arguments(self, place: Place, argv: list[str]) -> list[str]:
        """Return a command with the mounts' paths where the mounts are."""
        return [self._rewrite(place, word) for word in argv]

    def command(self, place: Place, launch: list[str], deny: int | None, tell: int) -> list[str]:
        """Return the launcher's own command line."""
        return [sys.executable, "-I", "-S", str(self._interior.launcher), *launch]

    def _rewrite(self, place: Place, word: str) -> str:
        inside = any(word == mount or word.startswith(f"{mount}/") for mount in place.mounts)
        return str(self._outside(place, word)) if inside else word

    def _outside(self, place: Place, inside: str) -> Path:
        return place.home / "mounts" / inside.lstrip("/")

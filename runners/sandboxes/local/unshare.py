"""Isolation by util-linux's ``unshare`` and our own set-up, where bubblewrap is not installed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from runners.sandboxes.local.isolation import (
    BIN,
    LAUNCHER,
    SYSTEM_DIRECTORIES,
    TMP_BYTES,
    WORKDIR,
    Interior,
    Place,
)


class Unshare:
    """The same inside as bubblewrap's; ``unshare_setup.py`` mounts it."""

    name = "unshare"
    namespaced = True

    def __init__(self, interior: Interior) -> None:
        self._interior = interior
        self._program = shutil.which("unshare") or "unshare"
        self._setup = str(Path(__file__).with_name("unshare_setup.py"))

    def prepare(self, place: Place) -> None:
        """Make the directory on which the new root is mounted."""
        (place.home / "root").mkdir()

    def workdir(self, place: Place) -> str:
        """Return where the workspace is mounted."""
        return WORKDIR

    def environment(self, place: Place) -> dict[str, str]:
        """Return the environment of commands."""
        return self._interior.environment(BIN)

    def arguments(self, place: Place, argv: list[str]) -> list[str]:
        """Return a command as it is."""
        return argv

    def command(self, place: Place, launch: list[str], deny: int | None, tell: int) -> list[str]:
        """Return the command line: ``unshare`` runs the set-up, which runs the launcher."""
        system = {name: name for name in SYSTEM_DIRECTORIES if Path(name).exists()}
        read_only = {**system, **{k: str(v) for k, v in self._interior.shared().items()}}
        read_only |= {inside: str(host) for inside, host in place.mounts.items()}
        plan = {
            "root": str(place.home / "root"),
            "read_only": read_only,
            "workspace": [str(place.workspace), WORKDIR],
            "tmp_bytes": TMP_BYTES,
            "deny": deny,
            "tell": tell,
        }
        return [
            *(self._program, "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc"),
            *("--uts", "--fork", "--kill-child", "--", sys.executable, "-I", "-S", self._setup),
            *(json.dumps(plan), f"{BIN}/python", "-I", "-S", LAUNCHER, *launch),
        ]

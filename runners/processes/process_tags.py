"""Processes by a mark: a variable in the environment that they, or their ancestors, were started
with.

A mark finds what a dead parent started whatever became of the pids in between, and never another
process. What clears its environment escapes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SERVICE_TAG = "AGENTRL_SERVICE"
"""Marks a service of a run; the value is its name in the ledger."""
SANDBOX_TAG = "AGENTRL_SANDBOX"
"""Marks what runs in a local sandbox: ``<backend>/<number>``."""

KILL_S = 5.0
"""From SIGKILL to gone; a process that the kernel holds (a dead NFS mount) may take for ever."""
_PAUSE_S = 0.01


def kill_tagged(variable: str, mine: Callable[[str], bool]) -> int:
    """Kill every process whose value of ``variable`` is ``mine``, until a look finds none.

    Returns how many there were; raises TimeoutError if one does not die.
    """
    killed: set[int] = set()
    until = time.monotonic() + KILL_S
    while found := _kill_once(f"{variable}=".encode(), mine):
        killed |= found
        if time.monotonic() > until:
            raise TimeoutError(f"processes {sorted(found)} do not die")
        time.sleep(_PAUSE_S)
    return len(killed)


def _kill_once(prefix: bytes, mine: Callable[[str], bool]) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 (a thousand Path objects)
        if not name.isdigit():
            continue
        with suppress(OSError):  # gone meanwhile, or another user's
            handle = os.pidfd_open(int(name))  # first: what dies after this line is not reused
            try:
                if _bears(Path(f"/proc/{name}/environ").read_bytes(), prefix, mine):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    found.add(int(name))
            finally:
                os.close(handle)
    return found


def _bears(environment: bytes, prefix: bytes, mine: Callable[[str], bool]) -> bool:
    if prefix not in environment:
        return False
    return any(
        line.startswith(prefix) and mine(line[len(prefix) :].decode(errors="replace"))
        for line in environment.split(b"\0")
    )

"""Process tags: environment variables by which the processes that we started are found again.

Children inherit the environment, so a tag finds everything a dead parent started, whatever became
of the pids in between, and never a process that is not ours. A process that clears its environment
escapes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SERVICE_TAG = "AGENTRL_SERVICE"
"""Set for a service of a run; the value is its name in the ledger."""
SANDBOX_TAG = "AGENTRL_SANDBOX"
"""Set for everything in a local sandbox; the value is ``<backend's unique name>/<number>``."""

KILL_S = 5.0
"""From SIGKILL to gone; a process that the kernel holds (a dead NFS mount) may take for ever."""
_PAUSE_S = 0.01
RUNNING: dict[int, str] = {}
"""Pid → name of the sandbox, for the processes that were spawned for a command that runs now."""


def kill_tagged(variable: str, matches: Callable[[str], bool]) -> int:
    """Kill every process whose value of ``variable`` satisfies ``matches``; return how many.

    Scans until a scan finds none, because a process may fork between being listed and being killed.
    Raises TimeoutError if one does not die.
    """
    killed: set[int] = set()
    until = time.monotonic() + KILL_S
    while found := _kill_once(f"{variable}=".encode(), matches):
        killed |= found
        if time.monotonic() > until:
            raise TimeoutError(f"processes {sorted(found)} do not die")
        time.sleep(_PAUSE_S)
    return len(killed)


def is_tagged(variable: str, value: str) -> bool:
    """Return whether a process has this value of ``variable``, as far as this user can see."""
    prefix = f"{variable}=".encode()
    for name in os.listdir("/proc"):  # noqa: PTH208 (as below)
        if name.isdigit():
            with suppress(OSError):  # gone meanwhile, or another user's
                if _has_tag(Path(f"/proc/{name}/environ").read_bytes(), prefix, value.__eq__):
                    return True
    return False


def _kill_once(prefix: bytes, matches: Callable[[str], bool]) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 (a thousand Path objects)
        if not name.isdigit():
            continue
        with suppress(OSError):  # gone meanwhile, or another user's
            # A pidfd before the check: if the process dies after this line, the signal goes to
            # nobody instead of to a new process with the same pid.
            pidfd = os.pidfd_open(int(name))
            try:
                if _has_tag(Path(f"/proc/{name}/environ").read_bytes(), prefix, matches):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    found.add(int(name))
            finally:
                os.close(pidfd)
    return found


def _has_tag(environment: bytes, prefix: bytes, matches: Callable[[str], bool]) -> bool:
    if prefix not in environment:
        return False
    return any(
        line.startswith(prefix) and matches(line[len(prefix) :].decode(errors="replace"))
        for line in environment.split(b"\0")
    )

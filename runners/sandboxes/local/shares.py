"""Limit what a sandbox takes of things that the kernel counts per user and has few of: instances
and watches of inotify, queues, semaphores and shared memory of System V.

Outside of its namespaces a sandbox has the number of the host's user, so one could take what all
others and the host's user need. The kernel counts inotify in every user namespace on the way up
(namespaces(7), ``/proc/sys/user``), and the others in each ipc namespace. So a limit that is
written inside holds for that sandbox alone, and its processes, which have no capabilities, cannot
raise it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PART = 8
"""Of what the host's user has, a sandbox may take one of so many parts."""
LEAST = 4
SHARED_MEMORY = 256 << 20
"""Bytes of System V, as many as in /dev/shm."""
IPC = {
    "/proc/sys/kernel/shmall": str(SHARED_MEMORY // 4096),
    "/proc/sys/kernel/msgmni": "32",
    "/proc/sys/kernel/sem": "250 8192 100 128",
}
"""Pages; queues of 16 KB; semaphores of a set, of all sets, operations of a call, sets."""
INSTANCES = "/proc/sys/user/max_inotify_instances"
COUNTED = {
    INSTANCES: "/proc/sys/fs/inotify/max_user_instances",
    "/proc/sys/user/max_inotify_watches": "/proc/sys/fs/inotify/max_user_watches",
}
"""Limits of a namespace, and those of the host's user."""
TRIAL_S = 10.0


def shares() -> dict[str, str]:
    """Return a sandbox's limits by the files that hold them, which each namespace has anew."""
    counted = {
        name: str(max(LEAST, int(Path(whole).read_text()) // PART))
        for name, whole in COUNTED.items()
        if Path(whole).is_file()
    }
    return {**counted, **IPC}


def find_wrapper() -> list[str]:
    """Return the beginning of a command line that runs a program as root of user and ipc namespaces
    with these limits; nothing where this user may make none (Ubuntu allows it bubblewrap alone).
    """
    program = shutil.which("unshare")
    if program is None:
        return []
    # A file that this kernel does not let us write stays as it is: the probe tells.
    writes = "".join(
        f"{{ echo '{value}' >{path}; }} 2>/dev/null; " for path, value in shares().items()
    )
    wrapper = [program, "--user", "--map-root-user", "--ipc", "--", "/bin/sh", "-c"]
    wrapper += [f'{writes}exec "$@"', "sh"]
    try:
        subprocess.run([*wrapper, "/bin/true"], capture_output=True, timeout=TRIAL_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return wrapper

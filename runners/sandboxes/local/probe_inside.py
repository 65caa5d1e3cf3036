"""What the probe tries from inside a sandbox; prints what happened as one JSON object.

Runs as ``python -I -S probe.py CANARY PORT PROCESSES``: a host path to write, a host port to reach,
a number of processes to exceed.
"""

# ruff: noqa: PTH119, PTH123, PTH208 (pathlib takes 6 ms to import)

import json
import os
import sys
import time
from _socket import socket

HOST = ("/", "/usr", "/etc", "/dev", "/proc/sys/kernel/panic", "/proc/sysrq-trigger")


def writes(path: str) -> bool:
    """Whether a file can be made."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    except OSError:
        return False
    return True


def connects(port: int) -> bool:
    """Whether the host's loopback answers."""
    with_host = socket()
    with_host.settimeout(2)
    try:
        with_host.connect(("127.0.0.1", port))
    except OSError:
        return False
    return True


def capabilities() -> int:
    """Return the effective capabilities."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))


def forks(most: int) -> int:
    """Start processes that only wait, until it is refused; return how many came."""
    started = 0
    try:
        while started < most:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            started += 1
    except OSError:
        pass
    return started


def main() -> None:
    """Try everything; what was forked is left running in a session of its own."""
    canary, port, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    seen = {
        "writes_workspace": writes("probe-file"),
        # The host's own are only asked about: where nothing isolates, a trial would change them.
        "writes_host": writes(canary) or any(os.access(path, os.W_OK) for path in HOST),
        "reaches_host": connects(port),
        "pids": [int(name) for name in os.listdir("/proc") if name.isdigit()],
        "uid": os.getuid(),
        "capabilities": capabilities(),
    }
    if os.fork() == 0:
        os.setsid()
        for stream in range(3):
            os.close(stream)
        if os.fork() == 0:
            os.execv("/bin/sleep", ["agentrl-probe-" + os.path.basename(canary), "60"])
        os._exit(0)
    seen["forks"] = forks(processes)
    print(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)


main()

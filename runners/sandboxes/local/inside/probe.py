"""Try to break out of a sandbox from inside, and print what succeeded as one JSON object.

Runs as ``python -I -S probe.py CANARY PORT PROCESSES INSTANCES``: a host path to write, a host port
to reach, numbers of processes and of inotify instances that must not be reached. It is mounted into
the sandbox alone, so it imports the standard library and nothing of ours.
"""

# ruff: noqa: PTH119, PTH123, PTH208 (pathlib takes 6 ms to import)

import json
import os
import sys
import time
from _socket import socket
from errno import EAFNOSUPPORT, EPERM

HOST = ("/", "/usr", "/etc", "/dev", "/proc/sys/kernel/panic", "/proc/sysrq-trigger")
OWN = ("/workspace", "/tmp", "/dev")
"""Mounts that may be written at or below."""
FAMILIES = (38, 40)
"""AF_ALG and AF_VSOCK: sockets that a network namespace does not contain."""


def writes(path: str) -> bool:
    """Return whether a file can be made."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    except OSError:
        return False
    return True


def writable_mounts() -> list[str]:
    """Return the mounts that are not the sandbox's own and can be written."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    foreign = [p for p in points if not any(p == own or p.startswith(f"{own}/") for own in OWN)]
    return [point for point in foreign if os.access(point, os.W_OK)]


def opens_family(family: int) -> bool:
    """Return whether a socket of an address family can be made."""
    try:
        socket(family, 1).close()
    except OSError as error:
        return error.errno not in (EPERM, EAFNOSUPPORT)
    return True


def reads_launcher() -> bool:
    """Return whether the memory or environment of our parent, the launcher, can be opened."""
    for name in ("environ", "mem"):
        try:
            os.close(os.open(f"/proc/{os.getppid()}/{name}", os.O_RDONLY))
        except OSError:
            continue
        return True
    return False


def connects(port: int) -> bool:
    """Return whether a port of the host's loopback answers."""
    connection = socket()
    connection.settimeout(2)
    try:
        connection.connect(("127.0.0.1", port))
    except OSError:
        return False
    return True


def capabilities() -> int:
    """Return the effective capabilities as a bit mask."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))


def inotify_instances(most: int) -> int:
    """Open inotify instances until that fails; return how many, all closed again."""
    import _ctypes  # ctypes takes 20 ms to import

    start = _ctypes.dlsym(_ctypes.dlopen(None, 0), "inotify_init")  # type: ignore[arg-type]
    opened: list[int] = []
    while len(opened) < most and (fd := _ctypes.call_function(start, ())) >= 0:
        opened.append(fd)
    for fd in opened:
        os.close(fd)
    return len(opened)


def forks(most: int) -> int:
    """Start processes that only wait until fork fails; return how many were started."""
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
    """Try everything, and leave a process running in a session of its own."""
    canary, port, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    instances = int(sys.argv[4])
    seen = {
        "writes_workspace": writes("probe-file"),
        # access(2) for the host's own files: where nothing isolates, writing would change them.
        "writes_host": writes(canary) or any(os.access(path, os.W_OK) for path in HOST),
        "writable_mounts": writable_mounts(),
        "families": [family for family in FAMILIES if opens_family(family)],
        "reads_launcher": reads_launcher(),
        "reaches_host": connects(port),
        "pids": [int(name) for name in os.listdir("/proc") if name.isdigit()],
        "uid": os.getuid(),
        "capabilities": capabilities(),
        "inotify": inotify_instances(instances),
    }
    # A daemon (new session, no parent, no open stream) is what outlives a kill of the command's
    # process group. The host looks for it by its name afterwards.
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

"""What code under test can see of its run; runs there, and writes it to ``probe.json``."""

# ruff: noqa: PTH109, PTH110, PTH112, PTH113, PTH115, PTH118, PTH123, PTH207, PTH208
# (what it imports it would see)

import glob
import hashlib
import json
import os
import resource
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any

ROOTS = (".", "/tmp", "/dev/shm", "/dev/mqueue", "/opt/agentrl", "/run", "/var/tmp", "/etc")
STATUS = (
    *("Umask", "Uid", "Gid", "Groups", "Threads", "Seccomp", "NoNewPrivs"),
    *("SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
)
TEST = "tests/test_price.py"


def read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        return type(error).__name__


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        return type(error).__name__


def tests_in_frames() -> list[list[str]]:
    frame: FrameType | None = sys._getframe(1)
    found: list[list[str]] = []
    while frame is not None:
        tests = frame.f_locals.get("tests")
        if isinstance(tests, list) and tests and isinstance(tests[0], str):
            found.append(tests)
        frame = frame.f_back
    return found


def describe(path: str, patched: int) -> list[Any]:
    """A file without what differs: the text of tests, git's index, times since the patch."""
    info = os.lstat(path)
    found: list[Any] = [path, info.st_mode, info.st_uid, info.st_gid, info.st_nlink]
    for time in (info.st_mtime_ns, info.st_ctime_ns):
        age = patched - time
        found.append("new" if age <= 0 else "copied" if age < 600e9 else time)
    if not path.endswith((TEST, ".pyc", "eval.sh", "f2p.py", "index")) and os.path.isfile(path):
        with open(path, "rb") as file:
            found.append(hashlib.sha256(file.read()).hexdigest()[:12])
    return found


def look_at_files(root: str, patched: int) -> list[list[Any]]:
    found: list[list[Any]] = []
    order: list[tuple[int, str]] = []
    for folder, folders, names in os.walk(root):
        listed = os.listdir(folder)
        folders[:] = sorted(folders)
        found.append([folder, os.lstat(folder).st_mode, *listed])
        paths = [os.path.join(folder, name) for name in sorted(names)]
        found += [describe(path, patched) for path in paths]
        order += [(os.lstat(path).st_ino, path) for path in paths]
    if root == ".":
        found.append([path for _, path in sorted(order)])
    return found


def look() -> dict[str, Any]:
    patched = os.lstat("shop/price.py").st_mtime_ns
    umask = os.umask(0)
    os.umask(umask)
    names = [name for name in dir(resource) if name.startswith("RLIMIT")]
    status = [line.split(":") for line in read("/proc/self/status").splitlines()]
    mounts = [line.split() for line in read("/proc/self/mountinfo").splitlines()]
    inside = os.getpid() < 1000  # without namespaces these are folders of the host
    return {
        "host": [socket.gethostname(), *os.uname()],
        "arguments": [sys.argv, sys.orig_argv, read("/proc/self/cmdline")],
        "folder": [os.getcwd(), os.listdir("/")],
        "python": [sys.path, list(sys.flags), sys.version, sorted(sys.modules)],
        "user": [os.getresuid(), os.getresgid(), os.getgroups(), umask],
        "environment": sorted(os.environ.items()),
        "tests": tests_in_frames(),
        "descriptors": [[fd, link("/proc/self/fd/" + fd)] for fd in os.listdir("/proc/self/fd")],
        "limits": [[name, resource.getrlimit(getattr(resource, name))] for name in names],
        "scheduling": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
        "processors": sorted(os.sched_getaffinity(0)),
        "signals": [str(signal.getsignal(each)) for each in signal.valid_signals()],
        "status": [[name, value.split()] for name, value in status if name in STATUS],
        "mounts": sorted(mount[3:] for mount in mounts),
        "groups": [read("/proc/self/cgroup"), read("/proc/self/oom_score_adj")],
        "identity": [os.getpid(), os.getppid(), os.getsid(0), os.getpgid(0)],
        "threads": [thread.name for thread in threading.enumerate()],
        "processes": sorted(read(path) for path in glob.glob("/proc/[0-9]*/cmdline")),
        "shared": [read("/proc/sysvipc/" + kind) for kind in ("shm", "msg", "sem")],
        "keys": read("/proc/keys"),
        "interfaces": [os.listdir("/sys/class/net")] if os.path.isdir("/sys/class/net") else [],
        "files": {root: look_at_files(root, patched) for root in ROOTS[: None if inside else 1]},
    }


if not os.path.exists("probe.json"):
    _seen = look()
    with open("probe.json", "w") as _file:
        json.dump(_seen, _file)

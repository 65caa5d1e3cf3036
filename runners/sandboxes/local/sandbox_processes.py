"""Which processes run in a sandbox of this machine, seen from the host: what hangs in there.

Nothing is asked of the sandbox. Its processes are those below the one that was booted for it
(``track_sandbox``); without namespaces also those whose environment names its directory, and
carries the mark of sandboxes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from runners.processes.process_tags import SANDBOX_TAG

_COMMAND_LENGTH = 160
_roots: dict[int, str] = {}
"""What this process has booted and runs a command in: pid → name of the sandbox."""


@dataclass(frozen=True, slots=True)
class SandboxProcess:
    """A process in a sandbox at one moment."""

    pid: int
    """On the host."""
    parent: int
    command: str
    state: str
    """As ps says it: sleeping, running, disk-sleep, zombie, …"""
    cpu_s: float
    age_s: float
    waits_in: str
    """The kernel's function; empty where it runs, or where the kernel does not say."""
    kernel_stack: str
    """Innermost first; only the host's root may see it."""


@contextmanager
def track_sandbox(pid: int, name: str) -> Iterator[None]:
    """Let a process of this one's be known as a sandbox for as long as it runs a command."""
    _roots[pid] = name
    try:
        yield
    finally:
        del _roots[pid]


def list_sandbox_processes(name: str) -> list[SandboxProcess]:
    """Return the processes in the sandbox ``name`` and in those whose name continues it with a
    dash (a grading), parents first. Takes milliseconds and blocks.
    """
    ours = psutil.Process().children(recursive=True)
    roots = {pid for pid, of in list(_roots.items()) if of == name or of.startswith(f"{name}-")}
    found: dict[int, psutil.Process] = {}
    for process in ours:  # parents come before their children
        if process.pid in roots or _parent(process) in found or _marked(process, name):
            found[process.pid] = process
    for process in psutil.process_iter():  # what left its parent
        if process.pid not in found and _marked(process, name):
            found[process.pid] = process
    return [seen for process in found.values() if (seen := _seen(process)) is not None]


def _names(words: Iterable[str], name: str) -> bool:
    """Return whether a path among the words has the sandbox's directory in it."""
    directory = re.compile(rf"(?:^|[/\"]){re.escape(name)}(?:-[^/\"]*)?(?:$|[/\"])")
    return any(directory.search(word) for word in words)


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except (psutil.Error, OSError):
        return None


def _marked(process: psutil.Process, name: str) -> bool:
    environment = _read(process.pid, "environ")
    if SANDBOX_TAG.encode() + b"=" not in environment:
        return False
    return _names(environment.decode("utf-8", "replace").split("\0"), name)


def _seen(process: psutil.Process) -> SandboxProcess | None:
    try:
        with process.oneshot():
            used = process.cpu_times()
            return SandboxProcess(
                pid=process.pid,
                parent=process.ppid(),
                command=_short(process.cmdline() or [f"[{process.name()}]"]),
                state=process.status(),
                cpu_s=used.user + used.system,
                age_s=max(0.0, time.time() - process.create_time()),
                waits_in=_read(process.pid, "wchan").decode().strip().removeprefix("0"),
                kernel_stack=_stack(process.pid),
            )
    except (psutil.Error, OSError):  # gone since
        return None


def _short(words: list[str]) -> str:
    """Return a command line on one line; of a long one the beginning and the end, what it runs."""
    text = " ".join(" ".join(words).encode("utf-8", "replace").decode().split())
    half = _COMMAND_LENGTH // 2
    return text if len(text) <= _COMMAND_LENGTH else f"{text[:half]} … {text[-half:]}"


def _stack(pid: int) -> str:
    lines = _read(pid, "stack").decode("utf-8", "replace").splitlines()
    places = [line.rpartition("] ")[2].partition("+")[0] for line in lines]
    return " < ".join(place for place in places if place)


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""

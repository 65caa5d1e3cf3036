"""List the processes in a sandbox of this machine as the host sees them, to show what hangs there.

Nothing runs in the sandbox for this. Its processes are the descendants of the one that was booted
for it (``RUNNING``); without namespaces also those that carry the sandboxes' tag and whose
environment names the sandbox's directory.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from runners.system.processes.process_tags import RUNNING, SANDBOX_TAG

_COMMAND_LENGTH = 160


@dataclass(frozen=True, slots=True)
class SandboxProcess:
    """A process in a sandbox, at one moment."""

    pid: int
    """On the host."""
    parent: int
    command: str
    state: str
    """As in ps: sleeping, running, disk-sleep, zombie, …"""
    cpu_s: float
    age_s: float
    waits_in: str
    """The kernel function it sleeps in; empty if it runs, or the kernel does not show it."""
    kernel_stack: str
    """Innermost function first; empty unless we are the host's root."""


def list_sandbox_processes(name: str) -> list[SandboxProcess]:
    """Return the processes in a sandbox, parents first; blocks for some milliseconds.

    Sandboxes whose name continues ``name`` with a dash (its grading) are included.
    """
    ours = psutil.Process().children(recursive=True)
    roots = {pid for pid, of in list(RUNNING.items()) if of == name or of.startswith(f"{name}-")}
    found: dict[int, psutil.Process] = {}
    for process in ours:  # parents come before their children
        if process.pid in roots or _parent(process) in found or _is_tagged(process, name):
            found[process.pid] = process
    for process in psutil.process_iter():  # a daemon's parent is init, so it is not below us
        if process.pid not in found and _is_tagged(process, name):
            found[process.pid] = process
    described = map(_describe, found.values())
    return [process for process in described if process is not None]


def _mention(words: Iterable[str], name: str) -> bool:
    """Return whether a path among the words has the sandbox's directory in it."""
    directory = re.compile(rf"(?:^|[/\"]){re.escape(name)}(?:-[^/\"]*)?(?:$|[/\"])")
    return any(directory.search(word) for word in words)


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except (psutil.Error, OSError):
        return None


def _is_tagged(process: psutil.Process, name: str) -> bool:
    environment = _read(process.pid, "environ")
    if SANDBOX_TAG.encode() + b"=" not in environment:
        return False
    return _mention(environment.decode("utf-8", "replace").split("\0"), name)


def _describe(process: psutil.Process) -> SandboxProcess | None:
    try:
        with process.oneshot():
            used = process.cpu_times()
            return SandboxProcess(
                pid=process.pid,
                parent=process.ppid(),
                command=_shorten(process.cmdline() or [f"[{process.name()}]"]),
                state=process.status(),
                cpu_s=used.user + used.system,
                age_s=max(0.0, time.time() - process.create_time()),
                waits_in=_read(process.pid, "wchan").decode().strip().removeprefix("0"),
                kernel_stack=_stack(process.pid),
            )
    except (psutil.Error, OSError):  # gone since
        return None


def _shorten(words: list[str]) -> str:
    """Return a command line on one line; of a long one its beginning and its end."""
    text = " ".join(" ".join(words).encode("utf-8", "replace").decode().split())
    half = _COMMAND_LENGTH // 2
    return text if len(text) <= _COMMAND_LENGTH else f"{text[:half]} … {text[-half:]}"


def _stack(pid: int) -> str:
    lines = _read(pid, "stack").decode("utf-8", "replace").splitlines()
    # A line is "[<0>] do_wait+0x5d/0xf0".
    functions = [line.rpartition("] ")[2].partition("+")[0] for line in lines]
    return " < ".join(function for function in functions if function)


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""

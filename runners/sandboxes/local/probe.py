"""Find out what an isolation really holds on this machine, by trying to break out of it.

A kernel, a container or a security module may refuse or weaken a namespace without an error, so
version checks would prove nothing. ``inside/probe.py`` tries; what it reports is compared with what
the host sees.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from pathlib import Path
from typing import Any

import psutil

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import Sandbox, SandboxError
from runners.sandboxes.local.isolation import PROGRAMS
from runners.sandboxes.local.shares import INSTANCES, SHARED_MEMORY, shares
from runners.system.processes import can_tell

MOUNTS = {"/opt/probe/probe.py": PROGRAMS / "probe.py"}
"""Mounts of the probe's sandbox."""
PROBE_S = 90.0
"""Bounds what hangs: it takes a second, and on a crowded machine many."""
FEW_PROCESSES = 8
"""More pids than the probe itself can have inside; fewer than any host shows."""

WRITES, NETWORK = "no writes outside the workspace", "no network but the gateway"
HIDDEN, KILL, ROOTLESS = "host processes invisible", "complete kill", "no root rights inside"
FAMILIES = "no sockets past the network namespace"
MEMORY = "launcher's memory closed to commands"
LIMITED = "processes"
SHARED = "inotify, queues, shared memory"
BREACHES = {
    WRITES: "a file outside the workspace was written",
    NETWORK: "the host's network was reached",
    HIDDEN: "processes of the host were seen",
    KILL: "a process outlived its sandbox",
}
"""Without these, namespaces are of no use."""
UNCERTAIN_KILL = (
    "its launcher adopts and kills all descendants, whatever their session and environment; if a "
    "command kills the launcher first, only what carries its tag or is in its control group"
)


async def probe_isolation(
    sandbox: Sandbox, root: Path, processes: int, *, namespaced: bool
) -> dict[str, bool]:
    """Try an isolation; return whether each promise held.

    ``root`` is a directory of the host that the sandbox must not reach, ``processes`` its limit.
    Raises SandboxError if it does not run, or has namespaces that leak.
    """
    canary = root / f"canary-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        most = str(processes + FEW_PROCESSES)
        instances = _instances() + 1
        argv = ["python", "-I", "-S", *MOUNTS, str(canary), port, most, str(instances)]
        result = await sandbox.run(argv, deadline_s=PROBE_S)
    if result.timed_out:
        raise SandboxError(f"the probe took more than {PROBE_S:.0f} s: is this machine overloaded?")
    try:
        seen: dict[str, Any] = json.loads(result.stdout)
    except ValueError:
        printed = (result.stderr or result.stdout)[-300:].decode(errors="replace")
        raise SandboxError(f"the probe failed with code {result.exit_code}: {printed}") from None
    if not seen["writes_workspace"]:
        raise SandboxError("the workspace cannot be written from inside")
    # The probe left a process behind, under a name that is found from the host.
    left = await asyncio.to_thread(_find_processes, f"agentrl-probe-{canary.name}")
    held = {
        WRITES: not (seen["writes_host"] or seen["writable_mounts"] or canary.exists()),
        NETWORK: not seen["reaches_host"],
        HIDDEN: len(seen["pids"]) < FEW_PROCESSES and 1 in seen["pids"],
        KILL: not left,
        ROOTLESS: seen["uid"] != 0 and seen["capabilities"] == 0,
        FAMILIES: not seen["families"],
        MEMORY: not seen["reads_launcher"],
        LIMITED: seen["forks"] < processes,
        SHARED: seen["inotify"] < instances,
    }
    canary.unlink(missing_ok=True)
    breaches = [breach for promise, breach in BREACHES.items() if not held[promise]]
    if namespaced and breaches:
        raise SandboxError(f"it does not isolate: {', '.join(breaches)}")
    return held


def _instances() -> int:
    """Return the inotify instances that a sandbox may have."""
    return int(shares().get(INSTANCES, 0))


def _find_processes(name: str) -> list[int]:
    """Return the pids of the host's processes whose first argument is ``name``."""
    every = psutil.process_iter(["cmdline"])
    return [process.pid for process in every if (process.info["cmdline"] or [""])[0] == name]


def describe_guarantees(
    isolation: str, held: dict[str, bool], limits: LocalSandboxConfig, *, groups: bool
) -> dict[str, str]:
    """Return the findings for the user: promise → how it is kept, or why it is not.

    ``groups``: a control group limits the number of processes, and not only RLIMIT_NPROC.
    """
    how = f"{isolation}, tried at start"
    kept = {promise: how if holds else "NOT KEPT" for promise, holds in held.items()}
    if isolation == "none":
        kept[KILL] = UNCERTAIN_KILL
    by = "control group" if groups else "RLIMIT_NPROC"
    return {
        "isolation": isolation,
        **kept,
        LIMITED: f"{limits.processes} per sandbox ({by})" if held[LIMITED] else "NOT LIMITED",
        SHARED: f"{_instances()} instances, 100 KB, {SHARED_MEMORY >> 20} MB per command"
        if held[SHARED]
        else "NOT LIMITED",
        "gateway closed to the agent's commands": _describe_key(isolation),
        "memory": f"{limits.memory_mb} MB of address space per process, not per sandbox",
        "files": f"{limits.file_mb} MB per file, no quota on the sum",
        "cpu": f"{limits.cpu_s} s per process",
    }


def _describe_key(isolation: str) -> str:
    """Return who can take turns at the gateway."""
    if isolation == "none":
        return "NOT KEPT"
    known = "native and mini_swe_agent keep the session's key to themselves"
    if not can_tell():
        return f"{known}; NOT KEPT for claude_code and codex: this kernel lists no children"
    return (
        f"{known}; whoever has it, only the agent program's own connections are served. Commands "
        "can read and change the memory of claude_code and codex"
    )

"""Find out what an isolation really holds on this machine, by trying to break out of it.

``probe_isolation`` runs ``probe_inside.py`` in a sandbox, and compares what that program reports
with what the host sees. A kernel, a container or a security module may refuse or weaken a namespace
without an error, so version checks would prove nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import Sandbox, SandboxError
from runners.sandboxes.local.isolation import Isolation

PROBE = Path(__file__).with_name("probe_inside.py")
PROBE_S = 20.0
FEW_PROCESSES = 8
"""More pids than the probe itself can have inside; fewer than any host shows."""


@dataclass(frozen=True, slots=True)
class ProbeFindings:
    """The results of a probe; True: the sandbox held."""

    writes_confined: bool
    network_cut: bool
    processes_hidden: bool
    kill_complete: bool
    processes_limited: bool
    rootless: bool


async def probe_isolation(
    sandbox: Sandbox, root: Path, isolation: Isolation, processes: int
) -> ProbeFindings:
    """Try an isolation; raises SandboxError if it does not run, or has namespaces that leak.

    ``root`` is a directory of the host that the sandbox must not reach, ``processes`` its limit.
    """
    canary = root / f"canary-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        most = str(processes + FEW_PROCESSES)
        result = await sandbox.run(
            ["python", "-I", "-S", "/opt/probe/probe.py", str(canary), port, most],
            deadline_s=PROBE_S,
        )
    try:
        seen = json.loads(result.stdout)
    except ValueError:
        printed = (result.stderr or result.stdout)[-300:].decode(errors="replace")
        raise SandboxError(f"the probe failed with code {result.exit_code}: {printed}") from None
    if not seen["writes_workspace"]:
        raise SandboxError("the workspace cannot be written from inside")
    # The probe left a process behind, under a name that is found from the host.
    left = await asyncio.to_thread(_find_processes, f"agentrl-probe-{canary.name}")
    findings = ProbeFindings(
        writes_confined=not seen["writes_host"] and not canary.exists(),
        network_cut=not seen["reaches_host"],
        processes_hidden=len(seen["pids"]) < FEW_PROCESSES and 1 in seen["pids"],
        kill_complete=not left,
        processes_limited=seen["forks"] < processes,
        rootless=seen["uid"] != 0 and seen["capabilities"] == 0,
    )
    canary.unlink(missing_ok=True)
    if isolation.namespaced:
        _require_isolation(findings)
    return findings


def _require_isolation(findings: ProbeFindings) -> None:
    """Raise SandboxError if namespaces do not hold what they are for."""
    kept = {
        "a file outside the workspace was written": findings.writes_confined,
        "the host's network was reached": findings.network_cut,
        "processes of the host were seen": findings.processes_hidden,
        "a process outlived its sandbox": findings.kill_complete,
    }
    broken = [what for what, holds in kept.items() if not holds]
    if broken:
        raise SandboxError(f"it does not isolate: {', '.join(broken)}")


def _find_processes(name: str) -> list[int]:
    """Return the pids of the host's processes whose first argument is ``name``."""
    every = psutil.process_iter(["cmdline"])
    return [process.pid for process in every if (process.info["cmdline"] or [""])[0] == name]


def describe_guarantees(
    isolation: str, findings: ProbeFindings, limits: LocalSandboxConfig, *, groups: bool
) -> dict[str, str]:
    """Return the findings for the user: promise → how it is kept, or why it is not.

    ``groups``: a control group limits the number of processes, and not only RLIMIT_NPROC.
    """
    how = f"{isolation}, tried at start"
    by = "control group" if groups else "RLIMIT_NPROC"
    processes = f"{limits.processes} per sandbox ({by})"
    return {
        "isolation": isolation,
        "no writes outside the workspace": _held(findings.writes_confined, how),
        "no network but the gateway": _held(findings.network_cut, how),
        "host processes invisible": _held(findings.processes_hidden, how),
        "complete kill": how
        if isolation != "none"
        else "by tag only: a process that clears its environment escapes",
        "no root rights inside": _held(findings.rootless, how),
        "processes": processes if findings.processes_limited else "NOT LIMITED",
        "memory": f"{limits.memory_mb} MB of address space per process, not per sandbox",
        "files": f"{limits.file_mb} MB per file, no quota on the sum",
        "cpu": f"{limits.cpu_s} s per process",
    }


def _held(holds: bool, how: str) -> str:
    return how if holds else "NOT KEPT"

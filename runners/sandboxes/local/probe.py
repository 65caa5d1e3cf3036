"""Finding out what an isolation really holds on this machine: try to break out, and look.

``look`` runs ``probe_inside.py`` in a sandbox and compares what it managed with what the host saw.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import Sandbox, SandboxError
from runners.sandboxes.local.isolation import Isolation

PROBE = Path(__file__).with_name("probe_inside.py")
PROBE_S = 20.0


@dataclass(frozen=True, slots=True)
class ProbeFindings:
    """What was seen."""

    writes_confined: bool
    network_cut: bool
    processes_hidden: bool
    kill_complete: bool
    processes_limited: bool
    rootless: bool


async def look(sandbox: Sandbox, root: Path, isolation: Isolation, processes: int) -> ProbeFindings:
    """Try an isolation; raises SandboxError if it does not run, or has namespaces that leak."""
    canary = root / f"canary-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = await sandbox.run(
            ["python", "-I", "-S", "/opt/probe/probe.py", str(canary), port, str(processes + 8)],
            deadline_s=PROBE_S,
        )
    try:
        seen = json.loads(result.stdout)
    except ValueError:
        said = (result.stderr or result.stdout)[-300:].decode(errors="replace")
        raise SandboxError(f"the probe failed with code {result.exit_code}: {said}") from None
    if not seen["writes_workspace"]:
        raise SandboxError("the workspace cannot be written from inside")
    left = await asyncio.to_thread(_running, f"agentrl-probe-{canary.name}")
    findings = ProbeFindings(
        writes_confined=not seen["writes_host"] and not canary.exists(),
        network_cut=not seen["reaches_host"],
        processes_hidden=len(seen["pids"]) < 8 and 1 in seen["pids"],
        kill_complete=not left,
        processes_limited=seen["forks"] < processes,
        rootless=seen["uid"] != 0 and seen["capabilities"] == 0,
    )
    canary.unlink(missing_ok=True)
    if isolation.namespaced:
        _must_hold(findings)
    return findings


def _must_hold(findings: ProbeFindings) -> None:
    kept = {
        "a file outside the workspace was written": findings.writes_confined,
        "the host's network was reached": findings.network_cut,
        "processes of the host were seen": findings.processes_hidden,
        "a process outlived its sandbox": findings.kill_complete,
    }
    broken = [what for what, holds in kept.items() if not holds]
    if broken:
        raise SandboxError(f"it does not isolate: {', '.join(broken)}")


def _running(name: str) -> list[int]:
    """Return the host's processes whose first argument is ``name``."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                argument = (process / "cmdline").read_bytes().split(b"\0")[0]
            except OSError:
                continue
            if argument == name.encode():
                found.append(int(process.name))
    return found


def say(
    isolation: str, findings: ProbeFindings, limits: LocalSandboxConfig, *, groups: bool
) -> dict[str, str]:
    """Put the findings into words: promise → how it is kept, or why it is not."""
    how = f"{isolation}, tried at start"
    how_many = "control group" if groups else "RLIMIT_NPROC"
    most = f"{limits.processes} per sandbox ({how_many})"
    return {
        "isolation": isolation,
        "no writes outside the workspace": _held(findings.writes_confined, how),
        "no network but the gateway": _held(findings.network_cut, how),
        "host processes invisible": _held(findings.processes_hidden, how),
        "complete kill": how
        if isolation != "none"
        else "by mark only: a process that clears its environment escapes",
        "no root rights inside": _held(findings.rootless, how),
        "processes": most if findings.processes_limited else "NOT LIMITED",
        "memory": f"{limits.memory_mb} MB of address space per process, not per sandbox",
        "files": f"{limits.file_mb} MB per file, no quota on the sum",
        "cpu": f"{limits.cpu_s} s per process",
    }


def _held(holds: bool, how: str) -> str:
    return how if holds else "NOT KEPT"

"""Whether a job on a cluster goes on, as its launcher says: asked from here, nothing is changed."""

from __future__ import annotations

import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.sections.cluster import (
    ClusterLaunchConfig,
    KubernetesLaunchConfig,
    RayLaunchConfig,
    SlurmLaunchConfig,
    SshLaunchConfig,
)

ASK_S = 60.0
"""A scheduler under load takes its time; one that says nothing for so long does not answer."""
_OVER = ("Complete", "Failed", "ValidationFailed")
"""How KubeRay calls a RayJob's deployment that goes on no more."""


class LauncherError(AgentrlError):
    """The launcher of a job does not answer."""

    exit_code = ExitCode.SERVICE_GONE


@dataclass(frozen=True, slots=True)
class Running:
    """A job that goes on."""

    what: str
    """Who has it, e.g. ``Slurm job 4242``."""
    state: str
    """In the launcher's words; empty if it has none."""
    stop: str
    """The command that ends it."""
    attached: bool
    """A process of ours looks after it: its end will stand in the job's state."""


def running(launch: ClusterLaunchConfig, job_dir: Path) -> Running | None:
    """Return the job in ``job_dir`` if it goes on; raises LauncherError."""
    match launch:
        case SlurmLaunchConfig():
            return _slurm(job_dir)
        case KubernetesLaunchConfig():
            return _kubernetes(launch)
        case RayLaunchConfig():
            address = _address(launch.head, launch)
            stop = f"ray job stop --address {address} {_submission(job_dir)}"
            return _launcher(job_dir, stop) or _ray(address, job_dir)
        case SshLaunchConfig():
            return _launcher(job_dir, None) or _ray(_address(_first_host(launch), launch), job_dir)
    raise AssertionError(launch)


def ended(launch: ClusterLaunchConfig, job_dir: Path) -> int | None:
    """Return the exit code of a job on Ray that ended while nobody looked after it, None if Ray
    does not know; raises LauncherError.
    """
    if not isinstance(launch, RayLaunchConfig):
        return None
    said = _ray_status(_address(launch.head, launch), job_dir)
    job = _submission(job_dir)
    words = {f"Job '{job}' succeeded": 0, f"Job '{job}' failed": 1, f"Job '{job}' was stopped": 1}
    return next((code for text, code in words.items() if text in said), None)


def _ask(*argv: str) -> tuple[int, str]:
    try:
        asked = subprocess.run(
            argv, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{argv[0]}: {error}") from error
    return asked.returncode, (asked.stdout if not asked.returncode else asked.stderr).strip()


def _word(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""


def _launcher(job_dir: Path, stop: str | None) -> Running | None:
    """Return the process on this machine that looks after the job."""
    host, _, rest = _word(job_dir / "state" / "launcher").partition(" ")
    pid, _, born = rest.partition(" ")
    if host != socket.gethostname() or not pid.isdigit():
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[19].decode() != born or fields[0] in b"ZX":
        return None
    return Running(f"process {pid} on {host}", "", stop or f"kill -TERM {pid}", attached=True)


def _slurm(job_dir: Path) -> Running | None:
    job = _word(job_dir / "state" / "slurm_id")
    if not job:
        return None
    code, said = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T %r")
    if code and "Invalid job id" not in said:
        raise LauncherError(f"squeue does not know how Slurm job {job} stands: {said}")
    if code or not said:
        return None
    state, _, reason = said.splitlines()[0].partition(" ")
    waits = state == "PENDING" and reason not in ("", "None")
    shown = f"{state.lower()} ({reason})" if waits else state.lower()
    return Running(f"Slurm job {job}", shown, f"scancel {job}", attached=True)


def _submission(job_dir: Path) -> str:
    return _word(job_dir / "state" / "submission")


def _address(head: str, launch: ClusterLaunchConfig) -> str:
    return f"http://{head}:{launch.dashboard_port}"


def hosts(launch: SshLaunchConfig) -> list[str]:
    """Return the hosts of ``launch.hosts_file``; raises OSError or UnicodeDecodeError."""
    lines = (line.strip() for line in launch.hosts_file.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _first_host(launch: SshLaunchConfig) -> str:
    try:
        return next(iter(hosts(launch)), "127.0.0.1")
    except (OSError, UnicodeDecodeError):
        return "127.0.0.1"


def _ray_status(address: str, job_dir: Path) -> str:
    """Return what Ray says of the job; nothing if it ended in order or Ray does not know it."""
    job = _submission(job_dir)
    if not job or (job_dir / "state" / "exit_code").exists():
        return ""
    return _ask("ray", "job", "status", "--address", address, job)[1]


def _ray(address: str, job_dir: Path) -> Running | None:
    job = _submission(job_dir)
    if f"Status for job '{job}'" not in _ray_status(address, job_dir):
        return None  # a cluster that was started anew, or none: the script says which
    stop = f"ray job stop --address {address} {job}"
    return Running(f"Ray job {job}", "", stop, attached=False)


def _kubernetes(launch: KubernetesLaunchConfig) -> Running | None:
    kubectl = ("kubectl", "--namespace", launch.namespace)
    form = "jsonpath={.metadata.name} {.status.jobDeploymentStatus} {.status.jobStatus}"
    query = ("get", "rayjob", launch.name, "--ignore-not-found", "--output", form)
    code, said = _ask(*kubectl, *query)
    if code:
        raise LauncherError(f"kubectl does not know how RayJob {launch.name} stands: {said}")
    name, _, states = said.partition(" ")
    if not name or states.split(" ")[0] in _OVER:
        return None
    stop = f"{' '.join(kubectl)} delete rayjob {launch.name}"
    return Running(f"RayJob {launch.name}", states.strip(), stop, attached=False)

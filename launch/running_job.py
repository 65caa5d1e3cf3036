"""Ask the launcher of a job on a cluster whether the job still runs; nothing is changed."""

from __future__ import annotations

import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.sections.cluster import (
    ClusterLaunchConfig,
    RayLaunchConfig,
    SshLaunchConfig,
)
from conf.sections.kubernetes import KubernetesLaunchConfig
from conf.sections.slurm import SlurmLaunchConfig

QUERY_TIMEOUT_S = 60.0
"""Deadline of a launcher's answer. It is generous because a busy scheduler is slow."""
_OVER = ("Complete", "Failed", "ValidationFailed")
"""KubeRay's states of a RayJob's deployment that has ended."""


class LauncherError(AgentrlError):
    """The launcher of a job does not answer."""

    exit_code = ExitCode.SERVICE_GONE


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs or waits in a queue."""

    what: str
    """Its name at the launcher, e.g. ``Slurm job 4242``."""
    state: str
    """The launcher's name of its state; empty if the launcher gives none."""
    stop: str
    """Command that ends it."""
    attached: bool
    """True if one of our scripts watches it and will write its exit code."""


def find_running_job(launch: ClusterLaunchConfig, job_dir: Path) -> RunningJob | None:
    """Return the job in ``job_dir`` if it runs or waits, else None; raises LauncherError."""
    match launch:
        case SlurmLaunchConfig():
            return _find_slurm_job(job_dir)
        case KubernetesLaunchConfig():
            return _find_rayjob(launch)
        case RayLaunchConfig():
            address = _address(launch.head, launch)
            stop = f"ray job stop --address {address} {_submission_id(job_dir)}"
            return _find_launcher(job_dir, stop) or _find_ray_job(address, job_dir)
        case SshLaunchConfig():
            return _find_launcher(job_dir, None) or _find_ray_job(
                _address(_first_host(launch), launch), job_dir
            )
    raise AssertionError(launch)


def read_ray_exit_code(launch: ClusterLaunchConfig, job_dir: Path) -> int | None:
    """Return the exit code of a job on a running Ray cluster that ended while no script watched it;
    None if Ray does not know it. Raises LauncherError.
    """
    if not isinstance(launch, RayLaunchConfig):
        return None
    answer = _ray_status(_address(launch.head, launch), job_dir)
    job = _submission_id(job_dir)
    # The first such words: the answer about a failed job ends with the job's log.
    found = re.search(rf"Job '{re.escape(job)}' (succeeded|failed|was stopped)", answer)
    return None if found is None else int(found[1] != "succeeded")


def _query(*argv: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{argv[0]}: {error}") from error
    return done.returncode, (done.stderr if done.returncode else done.stdout).strip()


def _read_word(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""


def _find_launcher(job_dir: Path, stop: str | None) -> RunningJob | None:
    """Return the launcher's process if it runs on this machine.

    The file holds host, process id and start time; the start time (field 22 of ``/proc/PID/stat``)
    tells the launcher from a later process with the same id.
    """
    host, _, rest = _read_word(job_dir / "state" / "launcher").partition(" ")
    pid, _, start_time = rest.partition(" ")
    if host != socket.gethostname() or not pid.isdigit():
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[19].decode() != start_time or fields[0] in b"ZX":
        return None
    return RunningJob(f"process {pid} on {host}", "", stop or f"kill -TERM {pid}", attached=True)


def _find_slurm_job(job_dir: Path) -> RunningJob | None:
    job = _read_word(job_dir / "state" / "slurm_id")
    if not job:
        return None
    code, answer = _query("squeue", "--noheader", f"--jobs={job}", "--format=%T %r")
    if code and "Invalid job id" not in answer:
        raise LauncherError(f"squeue cannot tell the state of Slurm job {job}: {answer}")
    if code or not answer:
        return None
    state, _, reason = answer.splitlines()[0].partition(" ")
    waits = state == "PENDING" and reason not in ("", "None")
    shown = f"{state.lower()} ({reason})" if waits else state.lower()
    return RunningJob(f"Slurm job {job}", shown, f"scancel {job}", attached=True)


def _submission_id(job_dir: Path) -> str:
    return _read_word(job_dir / "state" / "submission")


def _address(head: str, launch: ClusterLaunchConfig) -> str:
    return f"http://{head}:{launch.dashboard_port}"


def read_hosts(launch: SshLaunchConfig) -> list[str]:
    """Return the hosts of ``launch.hosts_file``; raises OSError or UnicodeDecodeError."""
    lines = (line.strip() for line in launch.hosts_file.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _first_host(launch: SshLaunchConfig) -> str:
    try:
        return next(iter(read_hosts(launch)), "127.0.0.1")
    except (OSError, UnicodeDecodeError):
        return "127.0.0.1"


def _ray_status(address: str, job_dir: Path) -> str:
    """Return Ray's answer about the job; empty if the job has an exit code or no submission id."""
    job = _submission_id(job_dir)
    if not job or (job_dir / "state" / "exit_code").exists():
        return ""
    return _query("ray", "job", "status", "--address", address, job)[1]


def _find_ray_job(address: str, job_dir: Path) -> RunningJob | None:
    job = _submission_id(job_dir)
    if f"Status for job '{job}'" not in _ray_status(address, job_dir):
        return None  # No such cluster or job any more: starting the script again finds out.
    stop = f"ray job stop --address {address} {job}"
    return RunningJob(f"Ray job {job}", "", stop, attached=False)


def _find_rayjob(launch: KubernetesLaunchConfig) -> RunningJob | None:
    kubectl = ("kubectl", "--namespace", launch.namespace)
    form = "jsonpath={.metadata.name} {.status.jobDeploymentStatus} {.status.jobStatus}"
    query = ("get", "rayjob", launch.name, "--ignore-not-found", "--output", form)
    code, answer = _query(*kubectl, *query)
    if code:
        raise LauncherError(f"kubectl cannot tell the state of RayJob {launch.name}: {answer}")
    name, _, states = answer.partition(" ")
    if not name or states.split(" ")[0] in _OVER:
        return None
    stop = f"{' '.join(kubectl)} delete rayjob {launch.name}"
    return RunningJob(f"RayJob {launch.name}", states.strip(), stop, attached=False)

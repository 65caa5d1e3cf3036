"""End a job on a cluster that runs or waits, by its own launcher, and wait for its end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.slurm import SlurmLaunchConfig
from launch.running_job import QUERY_TIMEOUT_S, LauncherError, RunningJob, find_running_job

POLL_S = 3.0
"""Seconds between two questions whether the job still runs."""
END_S = 300.0
"""Seconds for a job's end: ssh.sh gives each node 60, Kubernetes a pod 30, Slurm a step 30."""


def find_stop_command(launch: ClusterLaunchConfig, running: RunningJob, *, now: bool) -> list[str]:
    """Return the command that ends the job.

    In order, the script of a Slurm job gets the signal: it ends the nodes and writes the exit code.
    ``now``: Slurm ends all processes itself. The other launchers have one way.
    """
    words = shlex.split(running.stop)
    if isinstance(launch, SlurmLaunchConfig) and running.state == "running" and not now:
        return ["scancel", "--batch", "--signal=TERM", words[-1]]
    return words


def send_stop(command: list[str]) -> None:
    """Run the command that ends a job; raises LauncherError if it fails."""
    if command[0] == "kill":  # a process of this machine, which may have no program of that name
        try:
            os.kill(int(command[-1]), signal.SIGTERM)
        except ProcessLookupError:
            return
        except OSError as error:
            raise LauncherError(f"{shlex.join(command)}: {error}") from error
        return
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{shlex.join(command)}: {error}") from error
    if done.returncode:
        raise LauncherError(f"{shlex.join(command)}: {(done.stderr or done.stdout).strip()}")


def wait_for_end(
    launch: ClusterLaunchConfig,
    job_dir: Path,
    show: Callable[[RunningJob], object],
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait until the job neither runs nor waits, and call ``show`` meanwhile; return False if it
    still runs after ``END_S`` seconds. Raises LauncherError.
    """
    begun = clock()
    while (running := find_running_job(launch, job_dir)) is not None:
        if clock() - begun > END_S:
            return False
        show(running)
        wait(POLL_S)
    return True

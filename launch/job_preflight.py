"""What would stop a job on a cluster, as far as the machine that submits it can see. What only the
nodes can see, their own pre-flight checks (``scripts/preflight.sh``).
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from conf.sections.cluster import KubernetesLaunchConfig, SshLaunchConfig
from conf.sections.task import JsonlTaskConfig
from launch.plan import JobPlan
from launch.preflight import Problem
from launch.running import hosts

PROGRAMS = {
    "ssh": ("ssh",),
    "slurm": ("sbatch", "squeue"),
    "ray": ("ray",),
    "kubernetes": ("kubectl",),
}
"""What the start script of a launcher calls here."""


def job_preflight(plan: JobPlan) -> list[Problem]:
    """Return every problem of starting the job from here."""
    return [*_programs(plan), *_shared(plan), *_secrets(plan), *_hosts(plan)]


def _programs(plan: JobPlan) -> Iterator[Problem]:
    kind = plan.job.config.launch.kind
    for program in (*PROGRAMS[kind], "bash"):
        if shutil.which(program) is None:
            yield Problem(
                True,
                f"launch={kind} starts the job with {program}, which is not on this machine's "
                "PATH: start it where it is, or choose another launch",
            )


def _shared(plan: JobPlan) -> Iterator[Problem]:
    config, shared = plan.job.config, Path(plan.job.launch.shared_dir)
    if isinstance(config.launch, KubernetesLaunchConfig) and not shared.is_dir():
        return  # the claim is mounted in the pods
    if not shared.is_dir():
        yield Problem(
            True,
            f"launch.shared_dir={shared} is no directory here: start the job where it is mounted, "
            "or write the scripts alone with `agentrl launch … --out DIR`",
        )
        return
    if not os.access(shared, os.W_OK | os.X_OK):
        yield Problem(True, f"launch.shared_dir={shared} cannot be written by this user")
    model, task = plan.job.model.path, config.task
    if model is not None and model.is_relative_to(shared) and not (model / "config.json").exists():
        yield Problem(True, f"model.path={model} has no config.json: put the checkpoint there")
    if isinstance(task, JsonlTaskConfig):
        tasks = Path(task.path)
        if tasks.is_relative_to(shared) and not tasks.exists():
            yield Problem(True, f"task.path={tasks} does not exist: put the tasks there")


def _secrets(plan: JobPlan) -> Iterator[Problem]:
    if plan.job.config.launch.kind not in ("ssh", "slurm"):
        return  # the cluster's nodes have them already
    missing = [name for name in plan.secrets if not os.environ.get(name)]
    if missing:
        yield Problem(
            True,
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in the environment, "
            "and the job needs it: export it first (no file or log will hold it)",
        )


def _hosts(plan: JobPlan) -> Iterator[Problem]:
    launch = plan.job.config.launch
    if not isinstance(launch, SshLaunchConfig):
        return
    try:
        named = hosts(launch)
    except (OSError, UnicodeDecodeError) as error:
        yield Problem(True, f"launch.hosts_file={launch.hosts_file} cannot be read: {error}")
        return
    if len(named) != launch.nodes:
        yield Problem(
            True,
            f"launch.hosts_file={launch.hosts_file} names {len(named)} hosts, and launch.nodes="
            f"{launch.nodes}: name one per node",
        )
    elif not _may_be_here(named[0]):
        yield Problem(
            True,
            f"{named[0]}, the first host of launch.hosts_file, is another machine: start the job "
            "there, where Ray's head will be, or put this machine first",
        )


def _may_be_here(host: str) -> bool:
    """Whether a host could be this machine: a name that nobody can resolve could."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return True
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False

"""Check a job on a cluster before it is submitted, as far as this machine can see it.

The nodes check the rest themselves (``scripts/preflight.sh``).
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from conf.sections.cluster import SshLaunchConfig
from conf.sections.cluster_model import TableModel
from conf.sections.kubernetes import KubernetesLaunchConfig
from conf.task_sets import list_sets
from conf.warnings import find_warnings
from launch.checkpoint_config import CheckpointConfigError, compare_checkpoint
from launch.container_mounts import find_unmounted
from launch.plan import JobPlan
from launch.preflight import Problem
from launch.running_job import read_hosts

PROGRAMS = {
    "ssh": ("ssh",),
    "slurm": ("sbatch", "squeue"),
    "ray": ("ray",),
    "kubernetes": ("kubectl",),
}
"""Programs that the start script of each launcher calls on this machine."""


def find_job_problems(plan: JobPlan) -> list[Problem]:
    """Return every problem of starting the job from this machine."""
    checks = (_check_programs, _check_shared_dir, _check_secrets, _check_hosts)
    fatal = [Problem(True, message) for check in checks for message in check(plan)]
    warnings = [*_compare_checkpoint(plan), *find_job_cautions(plan)]
    return fatal + [Problem(False, message) for message in warnings]


def find_job_cautions(plan: JobPlan) -> list[str]:
    """Return a warning for each thing that is legal and seldom meant."""
    return [*find_warnings(plan.job.config), *find_unmounted(plan.job)]


def _check_programs(plan: JobPlan) -> Iterator[str]:
    kind = plan.job.config.launch.kind
    for program in (*PROGRAMS[kind], "bash"):
        if shutil.which(program) is None:
            yield (
                f"launch={kind} starts the job with {program}, which is not on this machine's "
                "PATH: start the job where it is, or choose another launch"
            )


def _check_shared_dir(plan: JobPlan) -> Iterator[str]:
    config, shared = plan.job.config, Path(plan.job.launch.shared_dir)
    if isinstance(config.launch, KubernetesLaunchConfig) and not shared.is_dir():
        return  # The claim may be mounted in the pods only.
    if not shared.is_dir():
        yield (
            f"launch.shared_dir={shared} is not a directory here: start the job where it is "
            "mounted, or only write the scripts with `agentrl launch … --out DIR`"
        )
        return
    if not os.access(shared, os.W_OK | os.X_OK):
        yield f"launch.shared_dir={shared} cannot be written by this user"
    model = plan.job.model.path
    if model is not None and model.is_relative_to(shared) and not (model / "config.json").exists():
        yield f"model.path={model} has no config.json: put the checkpoint there"
    for each in list_sets(config):
        path = each.config.path
        if path is not None and Path(path).is_relative_to(shared) and not Path(path).exists():
            yield f"{each.key}.path={path} does not exist: put the tasks there"


def _compare_checkpoint(plan: JobPlan) -> Iterator[str]:
    """Yield the differences of a checkpoint from the table, which slime would refuse later."""
    model = plan.job.model
    if isinstance(model, TableModel) and model.path is not None:
        file = model.path / "config.json"
        if file.is_file():
            try:
                yield from compare_checkpoint(model.architecture, file)
            except CheckpointConfigError as error:
                yield str(error)


def _check_secrets(plan: JobPlan) -> Iterator[str]:
    if plan.job.config.launch.kind not in ("ssh", "slurm"):
        return  # The nodes of a running cluster have them in their own environment.
    missing = [name for name in plan.secrets if not os.environ.get(name)]
    if missing:
        yield (
            f"the job needs {', '.join(missing)} in the environment: export it first (no file or "
            "log will hold it)"
        )


def _check_hosts(plan: JobPlan) -> Iterator[str]:
    launch = plan.job.config.launch
    if not isinstance(launch, SshLaunchConfig):
        return
    try:
        named = read_hosts(launch)
    except (OSError, UnicodeDecodeError) as error:
        yield f"launch.hosts_file={launch.hosts_file} cannot be read: {error}"
        return
    key = None if launch.login.key is None else Path(launch.login.key).expanduser()
    if key is not None and not os.access(key, os.R_OK):
        yield f"launch.login.key={launch.login.key} cannot be read: name the file of a private key"
    elif key is not None and key.stat().st_mode & 0o077:
        yield (
            f"launch.login.key={launch.login.key} can be read by others, and ssh would not use it: "
            f"`chmod 600 {key}`"
        )
    if len(named) != launch.nodes:
        yield (
            f"launch.hosts_file={launch.hosts_file} names {len(named)} hosts, and launch.nodes="
            f"{launch.nodes}: name one per node"
        )
    elif not _may_be_this_machine(named[0]):
        yield (
            f"{named[0]}, the first host of launch.hosts_file, is another machine: start the job "
            "there, where Ray's head will be, or put this machine first"
        )


def _may_be_this_machine(host: str) -> bool:
    """Return whether ``host`` could be this machine: an address of it can be bound here.

    A name that cannot be resolved may be an alias of the ssh configuration, so it is accepted.
    """
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

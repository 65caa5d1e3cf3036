"""The environment variables of a job, and the names of its secrets.

Secrets are known by name only; no file that is written contains a value.
"""

from __future__ import annotations

from conf.errors import ConfigError
from conf.sections.sandbox import E2bSandboxConfig
from launch.cluster_job import ClusterJob
from launch.slime_arguments import job_dir

SECRET_SUFFIXES = ("_KEY", "_TOKEN", "_PASSWORD", "_SECRET")


def secret_names(job: ClusterJob) -> tuple[str, ...]:
    """Return the names of the variables that the job needs and that are written to no file."""
    needed = ("E2B_API_KEY",) if isinstance(job.config.sandbox, E2bSandboxConfig) else ()
    return tuple(dict.fromkeys((*needed, *job.launch.secrets)))


def job_environment(job: ClusterJob) -> dict[str, str]:
    """Return the job's environment variables, without its secrets.

    Raises ConfigError if ``launch.env`` sets a secret, or a variable that the job sets itself.
    """
    launch = job.launch
    found = {
        "AGENTRL_RUN_DIR": str(job_dir(job)),
        "PYTHONPATH": f"{launch.megatron_dir}:{launch.slime_dir}",
        "PYTHONUNBUFFERED": "1",
        "TENSORBOARD_DIR": str(job_dir(job) / "tensorboard"),
        # Megatron needs a single hardware queue to overlap the communication of tensor and context
        # parallelism with computation: kernels then run in the order in which they are launched.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    if job.model.layout.dispatcher == "deepep":
        found["NVSHMEM_DISABLE_NCCL"] = "1"
    if launch.interface is not None:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        found |= dict.fromkeys(names, launch.interface)
    given = dict(line.split("=", 1) for line in launch.env)
    faults = [
        f"launch.env sets {name}, which the job sets itself" for name in given if name in found
    ]
    faults += [
        f"launch.env sets {name}, a secret: export it before the launch, and give its name alone, "
        "in launch.secrets"
        for name in given
        if name in secret_names(job) or name.upper().endswith(SECRET_SUFFIXES)
    ]
    if faults:
        raise ConfigError(faults)
    return found | given

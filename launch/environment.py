"""The variables of a job: what every process of it reads, and the names of its secrets.

Secrets stand here by name only; no file that is written holds a value.
"""

from __future__ import annotations

from conf.errors import ConfigError
from conf.sections.sandbox import E2bSandboxConfig
from launch.slime_arguments import job_dir
from launch.topology import ClusterJob


def secrets(job: ClusterJob) -> tuple[str, ...]:
    """Return the names of the variables that the job needs and that stand in no file."""
    needed = ("E2B_API_KEY",) if isinstance(job.config.sandbox, E2bSandboxConfig) else ()
    return tuple(dict.fromkeys((*needed, *job.launch.secrets)))


def environment(job: ClusterJob) -> dict[str, str]:
    """Return the job's variables; raises ConfigError if ``launch.env`` sets a secret or one that
    the job sets itself.
    """
    launch = job.launch
    found = {
        "AGENTRL_RUN_DIR": str(job_dir(job)),
        "PYTHONPATH": f"{launch.megatron_dir}:{launch.slime_dir}",
        "PYTHONUNBUFFERED": "1",
        "TENSORBOARD_DIR": str(job_dir(job) / "tensorboard"),
        # Megatron overlaps communication with tensor or context parallelism only so.
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
        if name in secrets(job) or name.upper().endswith(("_KEY", "_TOKEN", "_PASSWORD", "_SECRET"))
    ]
    if faults:
        raise ConfigError(faults)
    return found | given

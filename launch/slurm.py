"""The words of a Slurm job: options of sbatch, and what starts a program in a node's container."""

from __future__ import annotations

from conf.sections.slurm import SlurmContainerConfig, SlurmLaunchConfig


def sbatch_arguments(slurm: SlurmLaunchConfig) -> tuple[str, ...]:
    """Return the options of sbatch."""
    found = {
        "--job-name": slurm.name,
        "--nodes": str(slurm.nodes),
        "--ntasks-per-node": "1",
        "--gpus-per-node": str(slurm.gpus_per_node),
        "--time": slurm.time_limit,
        "--partition": slurm.partition,
        "--account": slurm.account,
        "--qos": slurm.qos,
        "--constraint": slurm.constraint,
        "--reservation": slurm.reservation,
        "--cpus-per-task": slurm.cpus_per_node and str(slurm.cpus_per_node),
        "--mem": slurm.mem,
    }
    whole = ("--exclusive",) if slurm.exclusive else ()
    return (*whole, *(f"{name}={value}" for name, value in found.items() if value), *slurm.sbatch)


def container_settings(slurm: SlurmLaunchConfig) -> dict[str, tuple[str, ...]]:
    """Return the container's options of ``srun``, and the words before a command that runs in it;
    both are empty without a container.
    """
    container = slurm.container
    mounts = _mounts(container, str(slurm.shared_dir))
    srun: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    match container.runtime:
        case "pyxis":
            srun = (
                f"--container-image={container.image}",
                f"--container-mounts={','.join(mounts)}",
                *([f"--container-workdir={container.workdir}"] if container.workdir else []),
                *container.arguments,
            )
        case "apptainer":
            inside = (
                *("apptainer", "exec", "--nv", f"--bind={','.join(mounts)}"),
                *([f"--pwd={container.workdir}"] if container.workdir else []),
                *container.arguments,
                str(container.image),
            )
    return {"SRUN_CONTAINER": srun, "IN_CONTAINER": inside}


def _mounts(container: SlurmContainerConfig, shared_dir: str) -> list[str]:
    """Return the mounts as ``SOURCE:TARGET[:ro]``: Pyxis reads a single path as an error."""
    given = [mount if ":" in mount else f"{mount}:{mount}" for mount in container.mounts]
    targets = [mount.split(":")[1] for mount in given]
    return given if shared_dir in targets else [f"{shared_dir}:{shared_dir}", *given]

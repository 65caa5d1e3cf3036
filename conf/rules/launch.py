"""Rules of the launchers: what a scheduler cannot be asked for together, what nodes can reach."""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.executor import ExecutorConfig, RayExecutorConfig
from conf.sections.gateway import LAST_PORT, GatewayConfig
from conf.sections.kubernetes import KubernetesLaunchConfig, PodConfig
from conf.sections.launch import LaunchConfig
from conf.sections.slurm import SlurmContainerConfig, SlurmLaunchConfig

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SBATCH: dict[str, str | None] = {
    **{"job-name": "name", "nodes": "nodes", "gpus-per-node": "gpus_per_node"},
    **{"time": "time_limit", "partition": "partition", "account": "account", "qos": "qos"},
    **{"constraint": "constraint", "reservation": "reservation", "exclusive": "exclusive"},
    **{"mem": "mem", "cpus-per-task": "cpus_per_node", "container-image": "container.image"},
    **{"container-mounts": "container.mounts", "container-workdir": "container.workdir"},
    **dict.fromkeys(("array", "error", "export", "export-file", "ntasks", "ntasks-per-node")),
    **dict.fromkeys(("output", "parsable", "test-only", "wait", "wrap")),
}
"""Options of sbatch that the job sets, and the key of ``launch`` behind each."""
_APPTAINER = {"bind": "mounts", "cwd": "workdir", "nv": None, "pwd": "workdir"}
"""The same of ``apptainer exec``, with the key of ``launch.container``."""
_EMPTYING = ("--cleanenv", "--containall")
"""Options of ``apptainer exec`` that keep the environment out of the container."""


def launch_rules(launch: LaunchConfig) -> Iterator[Rule]:
    """Yield the rules of the launcher."""
    if isinstance(launch, SlurmLaunchConfig):
        yield from _slurm_rules(launch)
        yield from _container_rules(launch.container, str(launch.shared_dir))
    if isinstance(launch, KubernetesLaunchConfig):
        yield from _pod_rules(launch.pod, str(launch.shared_dir))


def _pod_rules(pod: PodConfig, shared_dir: str) -> Iterator[Rule]:
    for name in pod.resources:
        yield (
            name == "nvidia.com/gpu",
            f"launch.pod.resources has {name}: set launch.gpus_per_node instead",
        )
        yield (
            "/" not in name and name not in ("cpu", "memory", "ephemeral-storage"),
            f"launch.pod.resources has {name}: name cpu, memory, ephemeral-storage, or a device "
            "with its domain, such as rdma/rdma_shared_device_a",
        )
    paths = [shared_dir, "/dev/shm", "/agentrl", *(mount.split(":")[1] for mount in pod.mounts)]
    for path in sorted(set(paths)):
        yield (
            paths.count(path) > 1,
            f"launch.pod.mounts has {path}, where a volume is mounted already: choose another path",
        )


def cluster_gateway_rules(
    launch: LaunchConfig, executor: ExecutorConfig, gateway: GatewayConfig
) -> Iterator[Rule]:
    """Yield the rules that rollouts on other nodes can reach the gateway, and that each of its
    processes has a port.
    """
    for key, first in (("port", gateway.port), ("metrics_port", gateway.metrics_port)):
        last = (first or 0) + gateway.replicas - 1
        yield (
            bool(first) and last > LAST_PORT,
            f"gateway.{key}={first} with gateway.replicas={gateway.replicas} needs ports up to "
            f"{last}: choose one up to {LAST_PORT + 1 - gateway.replicas}",
        )
    if isinstance(launch, ClusterLaunchConfig):
        yield (
            launch.nodes > 1
            and isinstance(executor, RayExecutorConfig)
            and gateway.host in _LOOPBACK,
            f"gateway.host={gateway.host} can be reached from one node only, and executor=ray runs "
            f"rollouts on {launch.nodes}: set gateway.host=0.0.0.0",
        )


def _slurm_rules(launch: SlurmLaunchConfig) -> Iterator[Rule]:
    yield (
        not launch.exclusive and None in (launch.cpus_per_node, launch.mem),
        "launch.exclusive=false and no launch.cpus_per_node or launch.mem: Slurm gives a shared "
        "job one CPU and a default memory per node; set both, or launch.exclusive=true",
    )
    for option in launch.sbatch:
        own = _find_own(option, _SBATCH)
        key = None if own is None else _SBATCH[own]
        fix = "leave it out" if key is None else f"set launch.{key} instead"
        yield own is not None, f"launch.sbatch has {option}, and the job sets --{own} itself: {fix}"


def _container_rules(container: SlurmContainerConfig, shared_dir: str) -> Iterator[Rule]:
    runtime, image = container.runtime, container.image
    given = [name for name, value in container if name != "runtime" and value not in (None, ())]
    yield (
        runtime is None and bool(given),
        f"launch.container.{'/'.join(given)} without a launch.container.runtime: set it to pyxis "
        "or apptainer, or leave the container out",
    )
    yield (
        runtime is not None and image is None,
        f"launch.container.runtime={runtime} without an image: set launch.container.image, or "
        "leave the runtime out",
    )
    yield (
        runtime is not None and any(sign in shared_dir for sign in ":, "),
        f"launch.shared_dir={shared_dir} has a colon, a comma or a space, and cannot be mounted "
        "into a container: choose another path",
    )
    for option in container.arguments:
        if runtime == "pyxis":
            foreign = not option.removeprefix("--no-").removeprefix("--").startswith("container-")
            yield (
                foreign,
                f"launch.container.arguments has {option}, which is no option of a container of "
                "srun (--container-…): options of the job belong into launch.sbatch",
            )
        yield (
            runtime == "apptainer" and option.partition("=")[0] in _EMPTYING,
            f"launch.container.arguments has {option}, and Slurm's variables and the job's secrets "
            "are in the environment that it empties: leave it out",
        )
        pyxis = {f"container-{name}": name for name in ("image", "mounts", "workdir")}
        own = _find_own(option, pyxis if runtime == "pyxis" else _APPTAINER)
        key = None if own is None else (pyxis | _APPTAINER)[own]
        fix = "leave it out" if key is None else f"set launch.container.{key} instead"
        yield (
            own is not None,
            f"launch.container.arguments has {option}, and the job sets --{own} itself: {fix}",
        )


def _find_own(option: str, names: dict[str, str] | dict[str, str | None]) -> str | None:
    """Return the name that ``option`` is or abbreviates: getopt accepts the beginning of a name."""
    given = option.partition("=")[0].removeprefix("--")
    return given if given in names else next((n for n in names if n.startswith(given)), None)

"""The launchers that start a campaign on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.section import Section, expecting

_HOST = r"([\w.-]+@)?\w[\w.-]*(:\d+)?"
Jump = Annotated[
    str,
    Field(pattern=rf"^{_HOST}(,{_HOST})*$"),
    expecting("[USER@]HOST[:PORT], with commas between several"),
]
KeyFile = Annotated[
    str,
    Field(pattern=r"^(~/|/)[^\s%\"]+$"),  # % begins a token of ssh's
    expecting("a path that begins with / or ~/, without spaces and %"),
]
FixedPort = Annotated[int, Field(ge=1, le=65535)]
VariableName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    expecting("the name of an environment variable, such as NCCL_DEBUG"),
]
Assignment = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*="),
    expecting("a variable and its value, NAME=VALUE"),
]
JobName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"),
    expecting("a name of at most 40 lower-case letters, digits and inner -"),
]


class ClusterLaunchConfig(Section):
    """Keys that all launchers of clusters share."""

    name: JobName = "agentrl"
    """Name of the job, and of its directory below ``shared_dir``."""
    nodes: PositiveInt = 8
    """Number of nodes."""
    gpus_per_node: PositiveInt = 8
    """Number of GPUs of each node."""
    gpu_memory_gib: PositiveFloat = 79.6
    """Memory of one GPU, as nvidia-smi shows it (an 80 GB card has 81559 MiB)."""
    shared_dir: Path
    """Directory that all nodes see under this path, for checkpoints, logs and state."""
    slime_dir: Path = Path("/root/slime")
    """slime's checkout; the default is its place in slime's image."""
    megatron_dir: Path = Path("/root/Megatron-LM")
    """Megatron-LM's checkout; the default is its place in slime's image."""
    python: str = "python3"
    """The nodes' Python, with slime, Megatron, SGLang and agentrl."""
    interface: str | None = None
    """Network interface of NCCL and Gloo; null: they choose one."""
    ray_port: FixedPort = 6379
    """Port of Ray's head."""
    dashboard_port: FixedPort = 8265
    """Port of Ray's dashboard, to which jobs are submitted."""
    join_s: PositiveInt = 600
    """Seconds until all nodes must have joined."""
    free_disk_gb: PositiveInt = 100
    """Least free space on a node's disk, in GB."""
    env: tuple[Assignment, ...] = ()
    """More environment variables of the job, ``'launch.env=["NAME=VALUE"]'``."""
    secrets: tuple[VariableName, ...] = ()
    """Names of environment variables that the job needs and that are written to no file, e.g.
    [WANDB_API_KEY]. With sandbox=e2b, E2B_API_KEY is always one of them.
    """
    extra_flags: tuple[str | int | float, ...] = ()
    """More arguments for slime's command line, e.g. [--use-fault-tolerance]."""
    ignore_memory: bool = False
    """Write the scripts even if the memory estimate says that the job cannot fit."""


class SshLoginConfig(Section):
    """Login of the first host on the others; null: as its ssh configuration says."""

    user: Annotated[str, Field(pattern=r"^[\w.-]+$"), expecting("a user's name")] | None = None
    """User on the hosts."""
    port: FixedPort | None = None
    """Port of the hosts' ssh servers."""
    key: KeyFile | None = None
    """File of the private key, on the first host, e.g. ``~/.ssh/cluster``."""
    jump: Jump | None = None
    """Hosts on the way, [USER@]HOST[:PORT], with commas between several."""


class SshLaunchConfig(ClusterLaunchConfig):
    """Nodes that the first of them reaches by ssh without a password."""

    kind: Literal["ssh"]
    hosts_file: Path
    """File with one host per line; the first is the node where the job is started."""
    login: SshLoginConfig


class RayLaunchConfig(ClusterLaunchConfig):
    """A Ray cluster that is already running."""

    kind: Literal["ray"]
    head: str
    """Address of the cluster's head node, where its dashboard listens."""

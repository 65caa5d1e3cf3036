"""The launcher of a Slurm cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.section import Section, expecting

Word = Annotated[str, Field(pattern=r"^\S+$"), expecting("one word, without spaces")]
Option = Annotated[
    str,
    Field(pattern=r"^--[a-z][a-z-]*(=[^\n]*)?$"),
    expecting("one option in one line, --name or --name=value"),
]
"""A program's option in one word, ``--name`` or ``--name=value``."""
Mount = Annotated[
    str,
    Field(pattern=r"^/[^:,\s]*(:/[^:,\s]*(:(ro|rw))?)?$"),
    expecting("SOURCE[:TARGET[:ro]] of absolute paths"),
]
WorkDir = Annotated[str, Field(pattern=r"^/\S*$"), expecting("an absolute path without spaces")]
Memory = Annotated[
    str, Field(pattern=r"^\d+[KMGT]?$"), expecting("a size such as 1800G, or '\"0\"' for all of it")
]


class SlurmContainerConfig(Section):
    """The container in which every node runs."""

    runtime: Literal["pyxis", "apptainer"] | None
    """Pyxis is Slurm's plug-in for enroot (``srun --container-image``); null: no container."""
    image: Word | None
    """Pyxis: ``REGISTRY#NAME:TAG`` or a ``.sqsh`` file; Apptainer: a ``.sif`` file or an address
    such as ``docker://…``.
    """
    mounts: tuple[Mount, ...]
    """Directories of the node, ``SOURCE[:TARGET[:ro]]``; ``launch.shared_dir`` is always one."""
    workdir: WorkDir | None
    """Working directory inside; null: the runtime's default."""
    arguments: tuple[Option, ...]
    """More options of ``srun --container-…`` or of ``apptainer exec``."""


class SlurmLaunchConfig(ClusterLaunchConfig):
    """A Slurm cluster."""

    kind: Literal["slurm"]
    partition: Word | None
    """null: the cluster's default."""
    account: Word | None
    """null: the user's default."""
    time_limit: Annotated[
        str,
        Field(pattern=r"^(\d+-)?\d+(:\d\d){0,2}$"),
        expecting("a time such as 24:00:00 or 3-00:00:00"),
    ]
    """In Slurm's format, [DAYS-]HH:MM:SS."""
    qos: Word | None
    """Quality of service; null: the user's default."""
    constraint: Word | None
    """Features that nodes must have."""
    reservation: Word | None
    exclusive: bool
    """Take whole nodes."""
    cpus_per_node: PositiveInt | None
    """null: those that Slurm gives; with ``exclusive`` all of a node's."""
    mem: Memory | None
    """Main memory of each node, e.g. 1800G; 0: all of it; null: the partition's default."""
    sbatch: tuple[Option, ...]
    """More options of sbatch."""
    modules: tuple[Word, ...]
    """Environment modules that are loaded before the nodes start."""
    container: SlurmContainerConfig

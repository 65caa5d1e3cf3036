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

    runtime: Literal["pyxis", "apptainer"] | None = None
    """Container in which the nodes run: ``pyxis`` (``srun --container-image``, with enroot) or
    ``apptainer``; null: none, ``launch.python`` is the hosts'.
    """
    image: Word | None = None
    """Pyxis: ``registry.example#team/agentrl:1`` or a ``.sqsh`` file; Apptainer: a ``.sif`` file or
    an address such as ``docker://…``.
    """
    mounts: tuple[Mount, ...] = ()
    """Directories of the node, ``SOURCE[:TARGET[:ro]]``; ``launch.shared_dir`` is always one."""
    workdir: WorkDir | None = None
    """Working directory inside; null: the runtime's default."""
    arguments: tuple[Option, ...] = ()
    """More options of ``srun --container-…`` or of ``apptainer exec``, e.g.
    [--no-container-mount-home].
    """


class SlurmLaunchConfig(ClusterLaunchConfig):
    """A Slurm cluster."""

    kind: Literal["slurm"]
    partition: Word | None = None
    """Partition; null: the cluster's default."""
    account: Word | None = None
    """Account; null: the user's default."""
    time_limit: Annotated[
        str,
        Field(pattern=r"^(\d+-)?\d+(:\d\d){0,2}$"),
        expecting("a time such as 24:00:00 or 3-00:00:00"),
    ] = "1-00:00:00"
    """Time limit in Slurm's format, [DAYS-]HH:MM:SS."""
    qos: Word | None = None
    """Quality of service; null: the user's default."""
    constraint: Word | None = None
    """Features that nodes must have, e.g. h100."""
    reservation: Word | None = None
    """Reservation; null: none."""
    exclusive: bool = True
    """Take whole nodes. A shared job needs ``cpus_per_node`` and ``mem``."""
    cpus_per_node: PositiveInt | None = None
    """CPUs of each node; null: those that Slurm gives; with ``exclusive`` all of a node's."""
    mem: Memory | None = None
    """Main memory of each node, e.g. 1800G, or ``'"0"'`` for all of it; null: the partition's
    default.
    """
    sbatch: tuple[Option, ...] = ()
    """More options of sbatch, ``'launch.sbatch=["--gres=nvme:1","--mail-type=END"]'``."""
    modules: tuple[Word, ...] = ()
    """Environment modules that are loaded before the nodes start, e.g. [cuda/12.9]."""
    container: SlurmContainerConfig

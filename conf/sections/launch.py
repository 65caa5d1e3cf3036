"""Launchers: the ways to start a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conf.sections.cluster import (
    RayLaunchConfig,
    SshLaunchConfig,
)
from conf.sections.kubernetes import KubernetesLaunchConfig
from conf.sections.section import Section
from conf.sections.slurm import SlurmLaunchConfig


class LocalLaunchConfig(Section):
    """One process tree on the machine where it is started."""

    kind: Literal["local"]


LaunchConfig = Annotated[
    LocalLaunchConfig
    | SshLaunchConfig
    | SlurmLaunchConfig
    | RayLaunchConfig
    | KubernetesLaunchConfig,
    Field(discriminator="kind"),
]

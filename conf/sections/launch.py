"""Where the run is started."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conf.sections.cluster import KubernetesLaunch, RayLaunch, SlurmLaunch, SshLaunch
from conf.sections.section import Section


class LocalLaunch(Section):
    """One process tree on the machine where it is started."""

    kind: Literal["local"]


Launch = Annotated[
    LocalLaunch | SshLaunch | SlurmLaunch | RayLaunch | KubernetesLaunch,
    Field(discriminator="kind"),
]

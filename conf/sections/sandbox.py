"""Settings of sandboxes, in which agents and tests run."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from conf.sections.plugin import PluginConfig
from conf.sections.section import BaseUrl, Section, expecting

Host = Annotated[
    str,
    Field(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"),
    expecting("the name of a host in lower case, such as pypi.org or *.example.com"),
]
"""Name of a host in lower case; ``*.example.com`` stands for its subdomains."""


class LocalSandboxConfig(Section):
    """Namespaces on this machine. They contain its programs, so a task's image is ignored."""

    kind: Literal["local"]
    isolation: Literal["auto", "bubblewrap", "unshare", "none"]
    """auto: the strongest that works here."""
    memory_mb: PositiveInt
    """Address space per process (RLIMIT_AS)."""
    processes: PositiveInt
    """Largest number of processes per sandbox (control group, or RLIMIT_NPROC)."""
    file_mb: PositiveInt
    """Largest file (RLIMIT_FSIZE)."""
    cpu_s: PositiveInt
    """CPU seconds per process (RLIMIT_CPU)."""
    warm: NonNegativeInt
    """Sandboxes kept booted in advance, for each set of mounts: an agent's, a grader's."""


def _check_egress_hosts(egress: str, hosts: tuple[str, ...]) -> None:
    """Raise ValueError unless hosts are named exactly if they are used."""
    if (egress == "allow") != bool(hosts):
        raise ValueError(
            f"egress={egress} with egress_hosts={list(hosts)}: name the hosts with egress=allow, "
            "and only then"
        )


class E2bSandboxConfig(Section):
    """Virtual machines of E2B's cloud, or of a service that speaks its API."""

    kind: Literal["e2b"]
    template: str
    """E2B template for tasks that name no image; it decides the sandbox's CPU and memory."""
    image_key: str | None
    """Metadata key for the image, for a service that starts images instead of templates, e.g.
    ``example.com/image``; null: a task's image is the name of a template, as at E2B.
    """
    size: str | None
    """Metadata ``size``, with the image key's prefix, for such a service; null: not sent."""
    lifetime_s: PositiveInt
    """Seconds after its last use at which E2B ends a sandbox."""
    boots: PositiveInt
    """Sandboxes that may start at the same time."""
    attempts: PositiveInt
    """Attempts per call, with full jitter between them."""
    api_url: BaseUrl | None
    """Control plane; null: E2B's."""
    sandbox_url: BaseUrl | None
    """One URL for all sandboxes; null: each has its own in E2B's domain."""
    egress: Literal["none", "allow", "open"]
    """Hosts besides the gateway that agents reach: none; those of ``egress_hosts`` but the task's
    own (its repository's host, package indexes); open: no rules are requested, for a server that
    refuses them, so agents and graders reach what its network leads to. Attempts are unknown.
    """
    egress_hosts: tuple[Host, ...]
    """For ``egress=allow``. E2B checks names in HTTP on port 80 and TLS on port 443 only."""

    @model_validator(mode="after")
    def _check_egress(self) -> Self:
        _check_egress_hosts(self.egress, self.egress_hosts)
        return self


class ContainerSandboxConfig(Section):
    """Containers of a docker or podman engine."""

    kind: Literal["docker", "podman"]
    """Also the name of the program by which the engine is reached."""
    image: str
    """Image for tasks that name none."""
    network: str
    """The engine's network of the agents' sandboxes; graders' have none. Unless ``egress=open`` it
    must have been made with ``--internal``: on it they reach the gateway and the proxy, at this
    machine's address on that network, but not the internet.
    """
    egress: Literal["none", "allow", "log", "open"]
    """Hosts besides the gateway that agents reach, through a proxy that records every attempt:
    none; those of ``egress_hosts`` (allow); all public ones (log). The task's own (its repository's
    host, package indexes) are never among them. open: what ``network`` leads to, unrecorded.
    """
    egress_hosts: tuple[Host, ...]
    """For ``egress=allow``."""
    memory_mb: PositiveInt
    """Memory per sandbox, in MB."""
    processes: PositiveInt
    """Largest number of processes per sandbox."""
    cpus: PositiveFloat
    """CPUs per sandbox."""

    @model_validator(mode="after")
    def _check_egress(self) -> Self:
        _check_egress_hosts(self.egress, self.egress_hosts)
        return self


class ApptainerSandboxConfig(Section):
    """Instances of Apptainer, without root: for machines that have no container engine."""

    kind: Literal["apptainer"]
    image: str
    """Image for tasks that name none: path of a SIF file or of a directory, or ``docker://NAME``."""
    images: str | None
    """Directory with the SIF files of the images that tasks name, as ``apptainer pull`` names them;
    null: they are pulled.
    """
    directory: str | None
    """Directory on a disk of this machine for what sandboxes write; null: that of ``TMPDIR``."""
    egress: Literal["none", "allow", "log"]
    """Hosts besides the gateway that agents reach, through a proxy that records every attempt:
    none; those of ``egress_hosts`` (allow); all public ones (log).
    """
    egress_hosts: tuple[Host, ...]
    """For ``egress=allow``."""
    memory_mb: PositiveInt | None
    """Memory per sandbox, in MB; null: no limit."""
    processes: PositiveInt | None
    """Largest number of processes per sandbox; null: no limit."""
    cpus: PositiveFloat | None
    """CPUs per sandbox; null: no limit."""

    @model_validator(mode="after")
    def _check_egress(self) -> Self:
        _check_egress_hosts(self.egress, self.egress_hosts)
        return self


class CustomSandboxConfig(PluginConfig):
    """Machines of a plug-in (``runners/sandboxes/remote/provided.py``)."""

    kind: Literal["custom"]
    has_images: bool
    """It starts machines from the image that a task names."""


SandboxConfig = Annotated[
    LocalSandboxConfig
    | E2bSandboxConfig
    | ContainerSandboxConfig
    | ApptainerSandboxConfig
    | CustomSandboxConfig,
    Field(discriminator="kind"),
]

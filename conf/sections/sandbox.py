"""Settings of sandboxes, in which agents and tests run."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from conf.sections.plugin import PluginConfig
from conf.sections.section import BaseUrl, Follows, Section, expecting

Host = Annotated[
    str,
    Field(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"),
    expecting("the name of a host in lower case, such as pypi.org or *.example.com"),
]
"""Name of a host in lower case; ``*.example.com`` stands for its subdomains."""


class LocalSandboxConfig(Section):
    """Namespaces on this machine. They contain its programs, so a task's image is ignored."""

    kind: Literal["local"]
    isolation: Literal["auto", "bubblewrap", "unshare", "none"] = "auto"
    """``auto``: the strongest that works here."""
    memory_mb: Annotated[PositiveInt, Follows("${harness.memory_mb}")]
    """Address space per process, in MB (RLIMIT_AS); the agent program must fit."""
    processes: PositiveInt = 512
    """Largest number of processes per sandbox (control group, or RLIMIT_NPROC)."""
    file_mb: PositiveInt = 1024
    """Largest file that a process may write, in MB (RLIMIT_FSIZE)."""
    cpu_s: Annotated[PositiveInt, Follows("${harness.cpu_s}")]
    """CPU seconds per process (RLIMIT_CPU)."""
    warm: NonNegativeInt = 2
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
    template: str = "base"
    """E2B template for tasks that name no image; it decides the sandbox's CPU and memory."""
    image_key: str | None = None
    """Metadata key for the image, for a service that starts images instead of templates, e.g.
    ``example.com/image``; null: a task's image is the name of a template, as at E2B.
    """
    size: str | None = None
    """Metadata ``size``, with the image key's prefix, for such a service; null: not sent."""
    lifetime_s: Annotated[PositiveInt, Follows("${greatest:3600,${rollout.deadlines.guard_s}}")]
    """Seconds after its last use at which E2B ends a sandbox; at least
    ``rollout.deadlines.guard_s``.
    """
    boots: PositiveInt = 64
    """Sandboxes that may start at the same time."""
    attempts: PositiveInt = 5
    """Attempts per call, with full jitter between them."""
    api_url: BaseUrl | None = None
    """URL of the control plane, such as that of a server of your own; null: E2B's."""
    sandbox_url: BaseUrl | None = None
    """One URL for all sandboxes; null: each has its own in E2B's domain."""
    egress: Literal["none", "allow", "open"] = "none"
    """Hosts besides the gateway that agents reach: none; those of ``egress_hosts`` but the task's
    own (its repository's host, package indexes); open: no rules are requested, for a server that
    refuses them, so agents and graders reach what its network leads to. Attempts are unknown.
    """
    egress_hosts: tuple[Host, ...] = ()
    """For ``egress=allow``: names of hosts; ``*.example.com`` stands for its subdomains. E2B checks
    names in HTTP on port 80 and TLS on port 443 only.
    """

    @model_validator(mode="after")
    def _check_egress(self) -> Self:
        _check_egress_hosts(self.egress, self.egress_hosts)
        return self


class ContainerSandboxConfig(Section):
    """Containers of a docker or podman engine."""

    kind: Literal["docker", "podman"]
    """Also the name of the program by which the engine is reached."""
    image: str = "python:3.11"
    """Image for tasks that name none."""
    network: str = "bridge"
    """The engine's network of the agents' sandboxes; graders' have none. Unless ``egress=open`` it
    must have been made with ``--internal``: on it they reach the gateway and the proxy, at this
    machine's address on that network, but not the internet.
    """
    egress: Literal["none", "allow", "log", "open"] = "none"
    """Hosts besides the gateway that agents reach, through a proxy that records every attempt:
    none; those of ``egress_hosts`` (allow); all public ones (log). The task's own (its repository's
    host, package indexes) are never among them. open: what ``network`` leads to, unrecorded.
    """
    egress_hosts: tuple[Host, ...] = ()
    """For ``egress=allow``: names of hosts; ``*.example.com`` stands for its subdomains."""
    memory_mb: PositiveInt = 8192
    """Memory per sandbox, in MB."""
    processes: PositiveInt = 1024
    """Largest number of processes per sandbox."""
    cpus: PositiveFloat = 2.0
    """CPUs per sandbox."""

    @model_validator(mode="after")
    def _check_egress(self) -> Self:
        _check_egress_hosts(self.egress, self.egress_hosts)
        return self


class ApptainerSandboxConfig(Section):
    """Instances of Apptainer, without root: for machines that have no container engine."""

    kind: Literal["apptainer"]
    image: str = "docker://python:3.11"
    """Image for tasks that name none: path of a SIF file or of a directory, or ``docker://NAME``."""
    images: str | None = None
    """Directory with the SIF files of the images that tasks name, as ``apptainer pull`` names them;
    null: they are pulled.
    """
    directory: str | None = None
    """Directory on a disk of this machine (not NFS, Lustre or GPFS) for what sandboxes write; null:
    that of ``TMPDIR``.
    """
    egress: Literal["none", "allow", "log"] = "none"
    """Hosts besides the gateway that agents reach, through a proxy that records every attempt:
    none; those of ``egress_hosts`` (allow); all public ones (log).
    """
    egress_hosts: tuple[Host, ...] = ()
    """For ``egress=allow``: names of hosts; ``*.example.com`` stands for its subdomains."""
    memory_mb: PositiveInt | None = None
    """Memory per sandbox, in MB; null: no limit. Without root, limits need control groups v2 and a
    systemd session.
    """
    processes: PositiveInt | None = None
    """Largest number of processes per sandbox; null: no limit."""
    cpus: PositiveFloat | None = None
    """CPUs per sandbox; null: no limit."""

    @model_validator(mode="after")
    def _check_egress(self) -> Self:
        _check_egress_hosts(self.egress, self.egress_hosts)
        return self


class CustomSandboxConfig(PluginConfig):
    """Machines of a plug-in (``runners/sandboxes/remote/provided.py``)."""

    kind: Literal["custom"]
    has_images: bool = True
    """It starts machines from the image that a task names."""


SandboxConfig = Annotated[
    LocalSandboxConfig
    | E2bSandboxConfig
    | ContainerSandboxConfig
    | ApptainerSandboxConfig
    | CustomSandboxConfig,
    Field(discriminator="kind"),
]

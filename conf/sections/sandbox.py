"""Settings of sandboxes, in which agents and tests run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from conf.sections.section import BaseUrl, Section


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


class DockerSandboxConfig(Section):
    """Containers of a Docker engine."""

    kind: Literal["docker"]
    image: str
    """Image for tasks that name none."""
    network: str
    """Docker network of the agents' sandboxes; graders' have none. On one made with ``--internal``
    they reach the gateway, at its address on that network, but not the internet.
    """
    memory_mb: PositiveInt
    """Memory per sandbox, in MB."""
    processes: PositiveInt
    """Largest number of processes per sandbox."""
    cpus: PositiveFloat
    """CPUs per sandbox."""


SandboxConfig = Annotated[
    LocalSandboxConfig | E2bSandboxConfig | DockerSandboxConfig, Field(discriminator="kind")
]

"""Where agents and tests run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from conf.sections.section import BaseUrl, Section


class LocalSandboxConfig(Section):
    """Namespaces on this machine, whose programs they have: a task's image is ignored."""

    kind: Literal["local"]
    isolation: Literal["auto", "bubblewrap", "unshare", "none"]
    """auto: the strongest that works here."""
    memory_mb: PositiveInt
    """Address space per process (RLIMIT_AS)."""
    processes: PositiveInt
    """Processes per sandbox (RLIMIT_NPROC)."""
    file_mb: PositiveInt
    """Largest file (RLIMIT_FSIZE)."""
    cpu_s: PositiveInt
    """CPU seconds per process (RLIMIT_CPU)."""
    warm: NonNegativeInt
    """Sandboxes that are booted before anybody asks, of each kind: an agent's, a grader's."""


class E2bSandboxConfig(Section):
    """Virtual machines of E2B's cloud, or of a service that speaks its API."""

    kind: Literal["e2b"]
    template: str
    """E2B template of tasks that name no image. Its own CPU and memory are the sandbox's."""
    image_key: str | None
    """Metadata key by which a service that makes sandboxes of images picks one, e.g.
    ``example.com/image``; null: a task's image is the name of a template, as at E2B.
    """
    size: str | None
    """Metadata ``size``, under the image key's prefix, for such a service; null: not sent."""
    lifetime_s: PositiveInt
    """E2B ends a sandbox so long after its last use."""
    boots: PositiveInt
    """Sandboxes that start at once."""
    attempts: PositiveInt
    """Tries per call, with full jitter between them."""
    api_url: BaseUrl | None
    """Control plane; null: E2B's."""
    sandbox_url: BaseUrl | None
    """One URL for all sandboxes; null: each has its own below E2B's domain."""


class DockerSandboxConfig(Section):
    """Containers of a docker engine."""

    kind: Literal["docker"]
    image: str
    """Image of tasks that name none."""
    network: str
    """Docker network of agents' sandboxes; graders' have none. On one made with ``--internal`` they
    reach the gateway, at its address on that network, but not the internet.
    """
    memory_mb: PositiveInt
    """Memory per sandbox."""
    processes: PositiveInt
    """Processes per sandbox."""
    cpus: PositiveFloat
    """CPUs per sandbox."""


SandboxConfig = Annotated[
    LocalSandboxConfig | E2bSandboxConfig | DockerSandboxConfig, Field(discriminator="kind")
]

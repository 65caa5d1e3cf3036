"""Command lines of the ``docker`` and ``podman`` programs.

Both take the same ones, but for what ``RUN_FLAGS``, ``REMOVE_FLAGS`` and ``qualify_image`` say.

Invariant: a container's root has only the capabilities that our set-up needs (users, owners, kill).
The agent has none, and ``no-new-privileges`` keeps it so.
"""

from __future__ import annotations

from pathlib import Path

from conf.sections.sandbox import ContainerSandboxConfig
from runners.sandboxes.contract import SandboxSpec

RUN_LABEL = "agentrl_run"
"""Label of a container, and of an image that was made of one: the run's tag."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID")
RUN_FLAGS = {
    "docker": (),
    # By default podman puts the host's proxies, often with a password, into every container.
    "podman": ("--http-proxy=false",),
}
REMOVE_FLAGS = {
    "docker": (),
    # By default podman waits ten seconds for the container to end by itself.
    "podman": ("--time", "0"),
}
DOCKER_HUB = "docker.io"


def run_argv(config: ContainerSandboxConfig, spec: SandboxSpec, tag: str, image: str) -> list[str]:
    """Return the command that starts a container of an image, which then only waits."""
    network = config.network if spec.network == "gateway" else "none"
    return [
        *(config.kind, "run", "--detach", "--init", *RUN_FLAGS[config.kind]),
        *("--name", container_name(tag, spec.name), "--label", f"{RUN_LABEL}={tag}"),
        *("--network", network, "--user", "0", "--workdir", "/"),
        # Equal to --memory: memory and swap together, so no swap.
        *("--memory", f"{config.memory_mb}m", "--memory-swap", f"{config.memory_mb}m"),
        *("--pids-limit", str(config.processes), "--cpus", f"{config.cpus:g}"),
        *("--security-opt", "no-new-privileges", "--cap-drop", "ALL"),
        *(word for capability in CAPABILITIES for word in ("--cap-add", capability)),
        *("--entrypoint", "sleep", image, "infinity"),
    ]


def exec_argv(program: str, name: str, script: str, *, stdin: bool = False) -> list[str]:
    """Return the command that runs a script in a container as root."""
    interactive = ["--interactive"] if stdin else []
    return [program, "exec", *interactive, "--user", "0", name, "sh", "-c", script]


def build_argv(program: str, context: Path, tag: str) -> list[str]:
    """Return the command that builds an image from a directory with a Dockerfile."""
    return [program, "build", "--quiet", "--tag", tag, str(context)]


def find_image_argv(program: str, tag: str) -> list[str]:
    """Return the command that prints the id of an image, or nothing."""
    return [program, "images", "--quiet", tag]


def inspect_argv(program: str, network: str) -> list[str]:
    """Return the command that prints whether a network is internal: ``true`` or ``false``."""
    return [program, "network", "inspect", "--format", "{{.Internal}}", network]


def state_argv(program: str, name: str) -> list[str]:
    """Return the command that prints whether a container runs: ``true`` or ``false``."""
    return [program, "inspect", "--format", "{{.State.Running}}", name]


def list_argv(program: str, tag: str) -> list[str]:
    """Return the command that lists the names of a run's containers, a line each."""
    label = f"label={RUN_LABEL}={tag}"
    return [program, "ps", "--all", "--filter", label, "--format", "{{.Names}}"]


def remove_argv(program: str, name: str) -> list[str]:
    """Return the command that ends and removes a container."""
    return [program, "rm", "--force", *REMOVE_FLAGS[program], "--volumes", name]


def commit_argv(program: str, name: str, tag: str, image: str) -> list[str]:
    """Return the command that makes an image of a container's files."""
    return [program, "commit", "--change", f"LABEL {RUN_LABEL}={tag}", name, image]


def list_images_argv(program: str, tag: str) -> list[str]:
    """Return the command that lists the ids of the images that a run has committed."""
    return [program, "images", "--quiet", "--filter", f"label={RUN_LABEL}={tag}"]


def remove_image_argv(program: str, image: str) -> list[str]:
    """Return the command that removes an image that no container uses."""
    return [program, "rmi", image]


def container_name(tag: str, name: str) -> str:
    """Return the name of a sandbox's container."""
    return f"agentrl-{tag[:12]}-{name}"


def qualify_image(image: str) -> str:
    """Return an image's name with its registry, as docker reads one without.

    podman pulls no image whose registry it must guess, unless this machine names one for that.
    """
    registry, slash, _ = image.partition("/")
    if slash and (registry == "localhost" or "." in registry or ":" in registry):
        return image
    return f"{DOCKER_HUB}/{image}" if slash else f"{DOCKER_HUB}/library/{image}"

"""Tell from a task's directory alone whether sandboxes of a configuration can run it."""

from __future__ import annotations

from conf.sections.sandbox import (
    ApptainerSandboxConfig,
    ContainerSandboxConfig,
    CustomSandboxConfig,
    E2bSandboxConfig,
    LocalSandboxConfig,
    SandboxConfig,
)
from runners.tasks.contract import Task
from runners.tasks.harbor.directory import TEST_SCRIPT, TESTS, TaskDirectory
from runners.tasks.harbor.dockerfile import (
    RESERVED,
    SYSTEM,
    ImageOnlyError,
    check_place,
    copy_sources,
    is_plain_image,
)
from runners.tasks.harbor.environment import find_directory, plan

ROOTS_OWN = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/bin", "/usr/local/lib", "/usr/sbin"),
    *("/opt/agentrl", "/var/lib/agentrl"),
)
"""Directories in which nothing may belong to an agent."""


def check_readiness(task: Task, sandbox: SandboxConfig) -> None:
    """Raise ImageOnlyError if a Harbor task needs an image that such sandboxes do not have, and
    ValueError or OSError if they cannot run it for another reason.
    """
    found = find_directory(task)
    _check_paths(found)
    match sandbox:
        case LocalSandboxConfig():
            _check_local(found, sandbox)
        case ContainerSandboxConfig():
            _check_containers(found, sandbox)
        case ApptainerSandboxConfig():
            _check_prebuilt(found, sandbox.kind)
            if sandbox.memory_mb is not None:
                _check_memory(found, sandbox.memory_mb)
            if sandbox.cpus is not None:
                _check_cpus(found, sandbox.cpus)
        case E2bSandboxConfig():
            _check_prebuilt(found, sandbox.kind)
            _check_network(found, sandbox.egress)
        case CustomSandboxConfig():
            if not sandbox.has_images:
                raise ImageOnlyError("sandbox.has_images=false")
            _check_prebuilt(found, sandbox.kind)


def _check_paths(found: TaskDirectory) -> None:
    """Raise ValueError for a workdir that the agent must not own, or an artifact put in one."""
    own = [("workdir", found.workdir)]
    own += [("artifacts", each.source) for each in found.config.artifacts]
    for what, path in own:
        if path in ("/", *SYSTEM) or _is_below(path, ROOTS_OWN):
            raise ValueError(f"{what}: {path} is a directory of the system")
    if _is_below(found.workdir, RESERVED):
        raise ValueError(f"workdir: {found.workdir} is made by the trial itself")
    for artifact in found.config.artifacts:
        if _is_below(artifact.source, ("/tests", "/solution", "/logs/verifier")):
            raise ValueError(f"artifacts: {artifact.source} is the verifier's own")


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in directories)


def _check_local(found: TaskDirectory, sandbox: LocalSandboxConfig) -> None:
    layout = plan(found)
    for source, target in layout.copies:
        check_place(target.rstrip("/"))
        copy_sources(found.environment, source)
    own = found.config.verifier.environment
    if own is not None:
        image = own.docker_image
        if image is not None and not is_plain_image(image):
            raise ImageOnlyError(f"its verifier's image is {image}")
        if not (found.path / TESTS / TEST_SCRIPT).is_file():
            raise ImageOnlyError("its tests are in its verifier's image")
    _check_memory(found, sandbox.memory_mb)


def _check_containers(found: TaskDirectory, sandbox: ContainerSandboxConfig) -> None:
    _check_memory(found, sandbox.memory_mb)
    _check_cpus(found, sandbox.cpus)
    _check_network(found, sandbox.egress)


def _check_cpus(found: TaskDirectory, cpus: float) -> None:
    wanted = found.config.environment.cpus
    if wanted is not None and wanted > cpus:
        raise ValueError(f"it needs {wanted:g} CPUs: set sandbox.cpus={wanted:g}")


def _check_network(found: TaskDirectory, egress: str) -> None:
    mode = found.config.agent_network.mode
    if mode != "public" and egress == "open":
        raise ValueError(
            f"its agent's network_mode is {mode}, and sandbox.egress=open limits nothing: set "
            "sandbox.egress=none"
        )


def _check_prebuilt(found: TaskDirectory, kind: str) -> None:
    if found.dockerfile is not None:
        raise ValueError(
            f"it has a Dockerfile, and sandbox={kind} builds no images: build and push it, name it "
            "in [environment] docker_image, or choose sandbox=docker or podman"
        )


def _check_memory(found: TaskDirectory, memory_mb: int) -> None:
    wanted = found.config.environment.memory_limit_mb
    if wanted is not None and wanted > memory_mb:
        raise ValueError(f"it needs {wanted} MB of memory: set sandbox.memory_mb={wanted}")

"""Make the sandbox backend that a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conf.sections.sandbox import DockerSandboxConfig, E2bSandboxConfig, SandboxConfig
from runners.sandboxes.contract import SandboxBackend, SandboxError
from runners.sandboxes.local.backend import LocalBackend


def _docker(config: DockerSandboxConfig, root: Path) -> SandboxBackend:
    from runners.sandboxes.remote.docker import DockerBackend

    return DockerBackend(config, root)


def _e2b(config: E2bSandboxConfig, root: Path) -> SandboxBackend:
    try:
        from runners.sandboxes.remote.e2b import E2bBackend
    except ModuleNotFoundError as error:
        fix = "pip install 'agentrl[e2b]'"
        raise SandboxError(f"sandbox=e2b needs {error.name}, which is missing: {fix}") from error
    return E2bBackend(config, root)


# docker and e2b are imported when they are chosen: the E2B SDK is an optional extra and slow.
BACKENDS: dict[str, Callable[[Any, Path], SandboxBackend]] = {
    "local": LocalBackend,
    "e2b": _e2b,
    "docker": _docker,
}


def make_backend(config: SandboxConfig, root: Path) -> SandboxBackend:
    """Return a backend that keeps its files below ``root``; blocks. Raises SandboxError."""
    return BACKENDS[config.kind](config, root)

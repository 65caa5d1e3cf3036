"""Make the sandbox backend that a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conf.sections.sandbox import E2bSandboxConfig, SandboxConfig
from runners.sandboxes.contract import SandboxBackend, SandboxError
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.remote.apptainer import ApptainerBackend
from runners.sandboxes.remote.containers import ContainerBackend
from runners.sandboxes.remote.provided import ProvidedBackend


def _e2b(config: E2bSandboxConfig, root: Path) -> SandboxBackend:
    try:  # slow to import; missing where agentrl was installed without its dependencies
        from runners.sandboxes.remote.e2b import E2bBackend
    except ModuleNotFoundError as error:
        fix = "pip install 'e2b>=2.63,<3'"
        raise SandboxError(f"sandbox=e2b needs {error.name}, which is missing: {fix}") from error
    return E2bBackend(config, root)


BACKENDS: dict[str, Callable[[Any, Path], SandboxBackend]] = {
    "local": LocalBackend,
    "e2b": _e2b,
    "docker": ContainerBackend,
    "podman": ContainerBackend,
    "apptainer": ApptainerBackend,
    "custom": ProvidedBackend,
}


def make_backend(config: SandboxConfig, root: Path) -> SandboxBackend:
    """Return a backend that keeps its files below ``root``; blocks.

    Raises SandboxError, and PluginError for code of the user's own.
    """
    return BACKENDS[config.kind](config, root)

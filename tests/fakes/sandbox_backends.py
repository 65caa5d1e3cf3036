"""Sandbox backends for tests: all that this machine can run, their settings."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from conf.sections.sandbox import (
    ApptainerSandboxConfig,
    ContainerSandboxConfig,
    CustomSandboxConfig,
    E2bSandboxConfig,
    LocalSandboxConfig,
)
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.fakes.apptainer import installed as apptainer
from tests.fakes.docker.installed import can_stand_in, docker_program
from tests.fakes.e2b.box import boxes_work
from tests.fakes.e2b.server import KEY, E2bServer
from tests.fakes.e2b.threaded import threaded_e2b_server
from tests.fakes.podman import IMAGE, OTHER_NAMES, find_obstacle, podman_engine

PAGE = Path(__file__).parents[2] / "docs" / "sandboxes.md"
PROGRAMS = {"bubblewrap": "bwrap", "unshare": "unshare"}
"""The program that an isolation needs."""
NAMES = (
    *("bubblewrap", "unshare", "none", "e2b", "docker_program", "docker", "podman"),
    *("apptainer_program", "provided"),
)
"""docker_program, apptainer_program: backends with a stand-in for the program of that name. They
show that the calls and the capabilities are sufficient, not that limits are enforced. podman: a
real engine. provided: the plug-in of docs/sandboxes.md, with that engine.
"""
REMOTE = ("e2b", "docker_program", "docker", "podman", "apptainer_program", "provided")


@dataclass(frozen=True)
class BackendUnderTest:
    """A backend, and what it promises beyond the contract."""

    name: str
    backend: SandboxBackend
    root: Path
    server: E2bServer | None = None

    @property
    def isolated(self) -> bool:
        """Commands have no network and no root rights, and can write only their own files."""
        return self.name != "none"

    @property
    def remote(self) -> bool:
        """Its sandboxes outlive their driver."""
        return self.name in REMOTE


def local_settings(**changes: object) -> LocalSandboxConfig:
    """Return the settings of a local backend, with small limits."""
    values = {
        "kind": "local", "isolation": "bubblewrap", "memory_mb": 512, "processes": 24,
        "file_mb": 4, "cpu_s": 2, "warm": 0, **changes,
    }  # fmt: skip
    return LocalSandboxConfig.model_validate(values)


def skip_without(isolation: str) -> None:
    """Skip the test if the program of an isolation is not installed."""
    program = PROGRAMS.get(isolation)
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def e2b_settings(server: E2bServer, **changes: object) -> E2bSandboxConfig:
    """Return a configuration for an E2B service on loopback."""
    values = {
        **{"kind": "e2b", "template": "base", "image_key": None, "size": None, "boots": 64},
        **{"lifetime_s": 3600, "attempts": 3, "api_url": server.url, "sandbox_url": server.url},
        **{"egress": "none", "egress_hosts": ()},
        **changes,
    }
    return E2bSandboxConfig.model_validate(values)


def docker_settings(**changes: object) -> ContainerSandboxConfig:
    """Return a configuration for a docker engine on this machine."""
    values = {
        **{"kind": "docker", "image": "python:3.11", "network": "bridge", "memory_mb": 512},
        **{"processes": 64, "cpus": 1.0, "egress": "open", "egress_hosts": (), **changes},
    }
    return ContainerSandboxConfig.model_validate(values)


def podman_settings(**changes: object) -> ContainerSandboxConfig:
    """Return a configuration for the podman engine of the tests."""
    return docker_settings(**{"kind": "podman", "image": IMAGE, "network": "podman", **changes})


def documented_machines(root: Path, *, network: str) -> CustomSandboxConfig:
    """Return a configuration for the plug-in of docs/sandboxes.md, written below ``root``."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    (root / "boxes.py").write_text(code)
    values = {
        **{"kind": "custom", "target": f"{root}/boxes.py:Boxes", "has_images": True},
        "options": {"image": OTHER_NAMES[0], "network": network},
    }
    return CustomSandboxConfig.model_validate(values)


def apptainer_settings(directory: Path, **changes: object) -> ApptainerSandboxConfig:
    """Return a configuration for Apptainer; ``directory`` is for what sandboxes write."""
    directory.mkdir(exist_ok=True)
    values = {
        **{"kind": "apptainer", "image": "docker://python:3.11", "images": None, "cpus": 1.0},
        **{"directory": str(directory), "egress": "none", "egress_hosts": ()},
        **{"memory_mb": 512, "processes": 64, **changes},
    }
    return ApptainerSandboxConfig.model_validate(values)


@asynccontextmanager
async def open_backend(name: str, root: Path) -> AsyncIterator[BackendUnderTest]:
    """Yield a backend of ``NAMES``, or skip the test if it cannot run here."""
    if name == "e2b":
        if not boxes_work():
            pytest.skip("this machine cannot make the boxes that stand for E2B's machines")
        with api_key(), threaded_e2b_server(root / "boxes") as server:
            backend = make_backend(e2b_settings(server), root / "driver")
            yield BackendUnderTest(name, backend, root, server)
            await backend.close()
        return
    if name == "docker_program":
        if not can_stand_in():
            pytest.skip("this machine cannot stand in for a docker engine")
        with docker_program(root / "bin"):
            backend = make_backend(docker_settings(), root / "driver")
            yield BackendUnderTest(name, backend, root)
            await backend.close()
        return
    if name == "apptainer_program":
        if not apptainer.can_stand_in():
            pytest.skip("this machine cannot stand in for Apptainer")
        with apptainer.apptainer_program(root / "bin"):
            backend = make_backend(apptainer_settings(root / "written"), root / "driver")
            yield BackendUnderTest(name, backend, root)
            await backend.close()
            assert not list((root / "written").iterdir()), "a sandbox left files"
        return
    if name in ("podman", "provided"):
        if (obstacle := find_obstacle()) is not None:
            pytest.skip(obstacle)
        with podman_engine():
            # Agents reach a gateway on this machine's loopback.
            podman = podman_settings(network="host")
            config = podman if name == "podman" else documented_machines(root, network="host")
            backend = make_backend(config, root / "driver")
            yield BackendUnderTest(name, backend, root)
            await backend.close()
        return
    if name == "docker":
        if shutil.which("docker") is None or _fails("docker", "version"):
            pytest.skip("no docker engine answers")
        backend = make_backend(docker_settings(), root / "driver")
    else:
        skip_without(name)
        local = local_settings(isolation=name, file_mb=16, warm=1)
        backend = await asyncio.to_thread(make_backend, local, root / "driver")
    yield BackendUnderTest(name, backend, root)
    await backend.close()


def _fails(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode != 0


@contextmanager
def api_key() -> Iterator[None]:
    """Set the API key of the service on loopback in the environment, as users do."""
    before = os.environ.get("E2B_API_KEY")
    os.environ["E2B_API_KEY"] = KEY
    try:
        yield
    finally:
        del os.environ["E2B_API_KEY"]
        if before is not None:
            os.environ["E2B_API_KEY"] = before

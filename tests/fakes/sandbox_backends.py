"""The backends that this machine can run, each made the same way for the conformance tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from conf.sections.sandbox import DockerSandboxConfig, E2bSandboxConfig
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.fakes.docker.installed import docker_program
from tests.fakes.docker.installed import works as docker_works
from tests.fakes.e2b.box import boxes_work
from tests.fakes.e2b.server import KEY, E2bServer
from tests.fakes.e2b.threaded import threaded_e2b_server
from tests.runners.sandboxes.conftest import PROGRAM, settings

NAMES = ("bubblewrap", "unshare", "none", "e2b", "docker_program", "docker")
"""docker_program: the backend with a stand-in for the ``docker`` program. It shows that the calls
and the rights that they ask for are enough, not what an engine makes of the limits.
"""


@dataclass(frozen=True)
class Place:
    """A backend, and what it promises beyond the contract."""

    name: str
    backend: SandboxBackend
    root: Path
    server: E2bServer | None = None

    @property
    def apart(self) -> bool:
        """Commands have no network, no root rights, and only their own files to write."""
        return self.name != "none"

    @property
    def elsewhere(self) -> bool:
        """It outlives its driver."""
        return self.name in ("e2b", "docker_program", "docker")


def e2b_settings(server: E2bServer, **changes: object) -> E2bSandboxConfig:
    """Return the configuration that leads to a service on loopback."""
    values = {
        **{"kind": "e2b", "template": "base", "image_key": None, "size": None, "boots": 64},
        **{"lifetime_s": 3600, "attempts": 3, "api_url": server.url, "sandbox_url": server.url},
        **changes,
    }
    return E2bSandboxConfig.model_validate(values)


def docker_settings() -> DockerSandboxConfig:
    """Return a configuration for an engine on this machine."""
    return DockerSandboxConfig(
        kind="docker", image="python:3.11", network="bridge", memory_mb=512, processes=64, cpus=1.0
    )


@asynccontextmanager
async def place(name: str, root: Path) -> AsyncIterator[Place]:
    """Yield a backend, or skip the test."""
    if name == "e2b":
        if not boxes_work():
            pytest.skip("this machine cannot make the boxes that stand for E2B's machines")
        with api_key(), threaded_e2b_server(root / "boxes") as server:
            backend = make_backend(e2b_settings(server), root / "driver")
            yield Place(name, backend, root, server)
            await backend.close()
        return
    if name == "docker_program":
        if not docker_works():
            pytest.skip("this machine cannot stand in for a docker engine")
        with docker_program(root / "bin"):
            backend = make_backend(docker_settings(), root / "driver")
            yield Place(name, backend, root)
            await backend.close()
        return
    if name == "docker":
        if shutil.which("docker") is None or _fails("docker", "version"):
            pytest.skip("no docker engine answers")
        backend = make_backend(docker_settings(), root / "driver")
    else:
        if name in PROGRAM and shutil.which(PROGRAM[name]) is None:
            pytest.skip(f"{PROGRAM[name]} is not installed")
        local = settings(isolation=name, file_mb=16, warm=1)
        backend = await asyncio.to_thread(make_backend, local, root / "driver")
    yield Place(name, backend, root)
    await backend.close()


def _fails(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode != 0


@contextmanager
def api_key() -> Iterator[None]:
    """Have the key of the service on loopback in the environment, as users have theirs."""
    before = os.environ.get("E2B_API_KEY")
    os.environ["E2B_API_KEY"] = KEY
    try:
        yield
    finally:
        del os.environ["E2B_API_KEY"]
        if before is not None:
            os.environ["E2B_API_KEY"] = before

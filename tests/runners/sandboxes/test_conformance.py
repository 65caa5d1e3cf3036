"""The contract of sandbox backends, checked on every backend that this machine can run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from agentrl.testing.sandbox_conformance import SandboxConformance
from runners.sandboxes.contract import SandboxBackend
from tests.fakes.podman import find_obstacle, podman_engine
from tests.fakes.sandbox_backends import (
    REMOTE,
    BackendUnderTest,
    documented_machines,
    open_backend,
)

pytestmark = pytest.mark.integration


class EveryBackend(SandboxConformance):
    """A backend of ``tests.fakes.sandbox_backends``, by its name."""

    name: ClassVar[str]
    tested: ClassVar[BackendUnderTest]

    def __init_subclass__(cls) -> None:
        cls.isolated = cls.name != "none"
        cls.remote = cls.name in REMOTE
        cls.boots_at_once = 16 if cls.remote else 64  # test_boots.py boots 64 on E2B

    @asynccontextmanager
    async def open_backend(self, root: Path) -> AsyncIterator[SandboxBackend]:
        async with open_backend(self.name, root) as tested:
            type(self).tested = tested
            yield tested.backend

    def list_machines(self) -> Collection[str]:
        server = self.tested.server
        return () if server is None else list(server.machines)


class TestBubblewrap(EveryBackend):
    name = "bubblewrap"


class TestUnshare(EveryBackend):
    name = "unshare"


class TestWithoutIsolation(EveryBackend):
    name = "none"


class TestE2b(EveryBackend):
    name = "e2b"


class TestDocker(EveryBackend):
    name = "docker"


@pytest.mark.slow  # forty seconds: each call of docker starts a program
class TestDockerStandIn(EveryBackend):
    name = "docker_program"


class TestPodman(EveryBackend):
    name = "podman"


class TestApptainerStandIn(EveryBackend):
    name = "apptainer_program"


@pytest.mark.slow  # seventy seconds: each call starts a program
class TestProvided(SandboxConformance):
    """The plug-in of docs/sandboxes.md."""

    remote = True

    @asynccontextmanager
    async def open_backend(self, root: Path) -> AsyncIterator[SandboxBackend]:
        if (obstacle := find_obstacle()) is not None:
            pytest.skip(obstacle)
        found = documented_machines(root, network="host")
        type(self).target, type(self).options = found.target, found.options
        with podman_engine():
            async with super().open_backend(root / "driver") as backend:
                yield backend

"""Local backends of every isolation with namespaces that this machine has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.sandbox import LocalSandbox
from tests.fakes.sandbox_backends import local_settings, skip_without


class Opener(Protocol):
    """Opens a sandbox over a source directory with two files."""

    def __call__(self, name: str = "one") -> AbstractAsyncContextManager[LocalSandbox]:
        """Open one."""
        ...


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("one\n")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    return source


@pytest.fixture(params=["bubblewrap", "unshare"], scope="session")
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalBackend]:
    name: str = request.param
    skip_without(name)
    backend = LocalBackend(local_settings(isolation=name), tmp_path_factory.mktemp(name) / "root")
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
def opened(backend: LocalBackend, source: Path) -> Opener:
    @asynccontextmanager
    async def opener(name: str = "one") -> AsyncIterator[LocalSandbox]:
        sandbox = await backend.create(SandboxSpec(name, source, "none"))
        try:
            yield sandbox
        finally:
            await sandbox.close()

    return opener

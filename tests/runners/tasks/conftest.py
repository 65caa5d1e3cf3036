"""A sandbox backend of this machine for the tests of graders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.local.backend import LocalBackend


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBackend]:
    settings = LocalSandboxConfig(
        kind="local", isolation="auto", memory_mb=512, processes=32, file_mb=8, cpu_s=20, warm=0
    )
    backend = LocalBackend(settings, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())

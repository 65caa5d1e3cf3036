"""What tests of a real agent program stand on; a module names its program in ``CONFIG``."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conf import programs
from conf.schema import Config
from runners.harnesses.registry import install_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.fakes.scripted_engine import ScriptedEngine
from tests.runners.harnesses.real_agent import Program


@pytest.fixture(scope="module")
def config(request: pytest.FixtureRequest) -> Config:
    """Return the module's configuration."""
    found: Config = request.module.CONFIG
    return found


@pytest.fixture(scope="module")
def installed(config: Config) -> None:
    """Install the program, or skip where nothing can."""
    place = programs.program_path(config.harness)
    assert place is not None
    by_npm = config.harness.kind != "mini_swe_agent"
    if by_npm and shutil.which("npm") is None and not place.exists():
        pytest.skip(f"npm, which installs {config.harness.kind}, is not here")
    install_harness(config.harness)


@pytest.fixture(scope="module")
def backend(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
    backend = make_backend(config.sandbox, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
def program(
    config: Config,
    installed: None,
    backend: SandboxBackend,
    engine: ScriptedEngine,
    tmp_path: Path,
) -> Program:
    return Program(config, backend, engine, tmp_path)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine

"""Fixtures of the tests with a real agent program, which a module names in ``CONFIG``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentrl.testing.scripted_engine import ScriptedEngine
from conf.schema import Config
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.runners.rollouts.harnesses.real_agent import RealProgram, install_or_skip


@pytest.fixture(scope="module")
def config(request: pytest.FixtureRequest) -> Config:
    """Return the module's configuration."""
    found: Config = request.module.CONFIG
    return found


@pytest.fixture(scope="module")
def installed(config: Config) -> None:
    """Install the program, or skip where npm is missing."""
    install_or_skip(config.harness)


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
) -> RealProgram:
    return RealProgram(config, backend, engine, tmp_path)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine

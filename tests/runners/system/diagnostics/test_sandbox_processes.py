"""The processes in a sandbox are listed from the host, under every isolation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.sandbox import LocalSandbox
from runners.system.diagnostics.sandbox_processes import SandboxProcess, list_sandbox_processes
from tests.fakes.sandbox_backends import local_settings, skip_without

pytestmark = pytest.mark.integration


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (source := tmp_path / "source").mkdir()
    return source


@pytest.fixture(params=["bubblewrap", "unshare", "none"])
async def sandboxes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    isolation: str = request.param
    skip_without(isolation)
    backend = await asyncio.to_thread(
        LocalBackend, local_settings(isolation=isolation), tmp_path / "root"
    )
    yield backend
    await backend.close()


@asynccontextmanager
async def running(sandbox: LocalSandbox, *argv: str) -> AsyncIterator[None]:
    work = asyncio.create_task(sandbox.run(list(argv), deadline_s=60))
    try:
        yield
    finally:
        work.cancel()
        await asyncio.wait([work])


async def wait_for(name: str, command: str) -> list[SandboxProcess]:
    """Return the processes of a sandbox as soon as the command among them sleeps."""
    while True:
        found = list_sandbox_processes(name)
        asleep = (each.state == "sleeping" for each in found if each.command == command)
        if any(asleep):  # and is not just starting
            return found
        await asyncio.sleep(0.02)


async def test_a_command_is_listed_with_its_state_in_its_own_sandbox_alone(
    sandboxes: LocalBackend, source: Path
) -> None:
    one = await sandboxes.create(SandboxSpec("train-1-a1", source, "none"))
    other = await sandboxes.create(SandboxSpec("train-1-a10", source, "none"))
    async with running(one, "sleep", "1000"), running(other, "sleep", "2000"):
        found = await wait_for("train-1-a1", "sleep 1000")
        await wait_for("train-1-a10", "sleep 2000")
    (process,) = (each for each in found if each.command == "sleep 1000")
    assert process.state == "sleeping"
    assert process.cpu_s < 10
    assert 0 <= process.age_s < 60
    assert process.parent in {each.pid for each in found}
    assert not any("2000" in each.command for each in found)
    assert list_sandbox_processes("train-1-a1") == []
    await one.close()
    await other.close()


async def test_a_daemon_in_the_grading_of_an_attempt_is_listed_with_it(
    sandboxes: LocalBackend, source: Path
) -> None:
    sandbox = await sandboxes.create(SandboxSpec("train-1-a1-grade", source, "none"))
    script = "(setsid sleep 1000 &) ; exec sleep 2000"
    async with running(sandbox, "sh", "-c", script):
        await wait_for("train-1-a1", "sleep 2000")
        assert await wait_for("train-1-a1", "sleep 1000")
    await sandbox.close()

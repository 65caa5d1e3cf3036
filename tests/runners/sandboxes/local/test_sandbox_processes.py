"""Which processes run in a sandbox is seen from the host, whatever isolates it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.sandbox import LocalSandbox
from runners.sandboxes.local.sandbox_processes import SandboxProcess, list_sandbox_processes
from tests.runners.sandboxes.conftest import PROGRAM, settings


@pytest.fixture(params=["bubblewrap", "unshare", "none"])
async def sandboxes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    isolation: str = request.param
    if isolation in PROGRAM and shutil.which(PROGRAM[isolation]) is None:
        pytest.skip(f"{PROGRAM[isolation]} is not installed")
    backend = await asyncio.to_thread(
        LocalBackend, settings(isolation=isolation), tmp_path / "root"
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


async def seen(name: str, command: str) -> list[SandboxProcess]:
    """Return the processes of a sandbox as soon as the command among them waits."""
    async with asyncio.timeout(20):
        while True:
            found = list_sandbox_processes(name)
            asleep = (each.state == "sleeping" for each in found if each.command == command)
            if any(asleep):  # not on its way there
                return found
            await asyncio.sleep(0.02)


async def test_the_command_is_seen_with_its_state_and_only_in_its_own_sandbox(
    sandboxes: LocalBackend, source: Path
) -> None:
    one = await sandboxes.create(SandboxSpec("train-1-a1", source, "none"))
    other = await sandboxes.create(SandboxSpec("train-1-a10", source, "none"))
    async with running(one, "sleep", "1000"), running(other, "sleep", "2000"):
        found = await seen("train-1-a1", "sleep 1000")
        await seen("train-1-a10", "sleep 2000")
    (process,) = (each for each in found if each.command == "sleep 1000")
    assert process.state == "sleeping"
    assert process.cpu_s < 10
    assert 0 <= process.age_s < 60
    assert process.parent in {each.pid for each in found}
    assert not any("2000" in each.command for each in found)
    assert list_sandbox_processes("train-1-a1") == []
    await one.close()
    await other.close()


async def test_the_grading_of_an_attempt_belongs_to_it(
    sandboxes: LocalBackend, source: Path
) -> None:
    sandbox = await sandboxes.create(SandboxSpec("train-1-a1-grade", source, "none"))
    async with running(sandbox, "sleep", "1000"):
        assert await seen("train-1-a1", "sleep 1000")
    await sandbox.close()


async def test_a_process_that_left_its_parent_is_seen(
    sandboxes: LocalBackend, source: Path
) -> None:
    sandbox = await sandboxes.create(SandboxSpec("one", source, "none"))
    script = "(setsid sleep 1000 &) ; exec sleep 2000"
    async with running(sandbox, "sh", "-c", script):
        await seen("one", "sleep 2000")
        assert await seen("one", "sleep 1000")
    await sandbox.close()

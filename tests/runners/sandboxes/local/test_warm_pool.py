"""Warm sandboxes: used once, by sandboxes with the same mounts, and gone with their backend."""

from __future__ import annotations

import asyncio
import gc
import itertools
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.sandbox import LocalSandbox
from runners.sandboxes.local.warm_pool import KEYS, REFILL_DELAY_S
from tests.fakes.sandbox_backends import local_settings, skip_without

pytestmark = pytest.mark.integration

_numbers = itertools.count()


@pytest.fixture(params=["bubblewrap", "unshare", "none"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    isolation: str = request.param
    skip_without(isolation)
    local = local_settings(isolation=isolation, warm=1)
    backend = await asyncio.to_thread(LocalBackend, local, tmp_path / "root")
    yield backend
    await backend.close()


async def create(backend: LocalBackend, source: Path, **mounts: Path) -> LocalSandbox:
    targets = {f"/opt/{name}": host for name, host in mounts.items()}
    spec = SandboxSpec(f"one-{next(_numbers)}", source, "none", mounts=targets)
    return await backend.create(spec)


def is_warm(sandbox: LocalSandbox) -> bool:
    return sandbox.workspace.parent.name.startswith(".warm")


async def create_warm(backend: LocalBackend, source: Path, **mounts: Path) -> LocalSandbox:
    """Return a sandbox in a warm slot, as soon as there is one."""
    while not is_warm(sandbox := await create(backend, source, **mounts)):
        await sandbox.close()
        await asyncio.sleep(0.05)
    return sandbox


async def wait_until_warm(backend: LocalBackend) -> None:
    """Return when the pool has a slot."""
    while not any(backend._pool._ready.values()):
        await asyncio.sleep(0.01)


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def test_a_sandbox_in_a_warm_slot_has_its_own_workspace_and_environment(
    backend: LocalBackend, source: Path
) -> None:
    sandbox = await create_warm(backend, source)
    (source / "a.txt").write_text("changed since\n")
    result = await sandbox.run(
        ["bash", "-c", "cat a.txt; ./run.sh; echo $KEY; pwd"], deadline_s=20, env={"KEY": "mine"}
    )
    assert result.stdout.decode().split("\n")[:4] == ["one", "ran", "mine", sandbox.workdir]
    again = await sandbox.run(["bash", "-c", "cat a.txt; echo $KEY"], deadline_s=20)
    assert again.stdout == b"one\n\n", "the second command has namespaces of its own"
    home = sandbox.workspace.parent
    await sandbox.close()
    assert not home.exists()


async def test_two_sandboxes_never_share_a_slot(backend: LocalBackend, source: Path) -> None:
    first = await create_warm(backend, source)
    second = await create_warm(backend, source)
    assert first.workspace != second.workspace
    await first.close()
    assert (await second.run(["cat", "a.txt"], deadline_s=20)).stdout == b"one\n"
    await second.close()


async def test_a_slot_with_other_mounts_is_not_taken(
    backend: LocalBackend, source: Path, tmp_path: Path
) -> None:
    (tool := tmp_path / "tool").write_text("tool")
    await (await create_warm(backend, source)).close()
    await wait_until_warm(backend)
    other = await create(backend, source, tool=tool)
    assert not is_warm(other)
    await other.close()
    with_tool = await create_warm(backend, source, tool=tool)
    assert (await with_tool.run(["cat", "/opt/tool"], deadline_s=20)).stdout == b"tool"
    await with_tool.close()


async def kill_launchers() -> None:
    """Kill everything that this process started, and return when it is dead."""
    killed = [psutil.Process(pid) for pid in children()]
    assert killed, "the launcher that waits"
    for process in killed:
        process.kill()
    while any(each.is_running() and each.status() != "zombie" for each in killed):
        await asyncio.sleep(0.01)


async def test_a_launcher_that_died_after_its_slot_was_taken_is_replaced(
    backend: LocalBackend, source: Path
) -> None:
    sandbox = await create_warm(backend, source)
    await kill_launchers()
    assert (await sandbox.run(["cat", "a.txt"], deadline_s=20)).stdout == b"one\n"
    await sandbox.close()


async def test_a_slot_whose_launcher_died_is_removed_and_not_taken(
    backend: LocalBackend, source: Path
) -> None:
    warm = await create_warm(backend, source)
    directory = warm.workspace.parent.parent
    await warm.close()
    await wait_until_warm(backend)
    (slot,) = directory.glob(".warm-*")
    await kill_launchers()
    sandbox = await create(backend, source)
    assert not is_warm(sandbox)
    assert not slot.exists()
    await sandbox.close()


async def test_only_the_latest_keys_have_warm_slots(
    backend: LocalBackend, source: Path, tmp_path: Path
) -> None:
    (tool := tmp_path / "tool").write_text("tool")
    slots: list[Path] = []
    for number in range(KEYS + 1):
        warm = await create_warm(backend, source, **{f"tool-{number}": tool})
        directory = warm.workspace.parent.parent
        await warm.close()
        while not (new := set(directory.glob(".warm-*")) - set(slots)):
            await asyncio.sleep(0.01)
        slots += new
    while slots[0].exists():
        await asyncio.sleep(0.01)
    assert all(slot.exists() for slot in slots[1:])


async def test_a_slot_whose_source_is_missing_is_removed(
    backend: LocalBackend, source: Path
) -> None:
    warm = await create_warm(backend, source)
    directory = warm.workspace.parent.parent
    await warm.close()
    shutil.rmtree(source)
    for _ in range(3):
        await wait_until_warm(backend)
        (slot,) = directory.glob(".warm-*")
        with pytest.raises(SandboxError, match="cannot make the workspace"):
            await create(backend, source)
        assert not slot.exists()


async def test_closing_the_backend_ends_the_slots_that_nobody_took(
    tmp_path: Path, source: Path
) -> None:
    before, local = children(), local_settings(isolation="auto", warm=3)
    backend = await asyncio.to_thread(LocalBackend, local, tmp_path / "root")
    await (await create_warm(backend, source)).close()
    assert children() > before
    await backend.close()
    assert children() <= before


def test_an_event_loop_that_ends_before_its_backend_is_closed_logs_nothing(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = LocalBackend(local_settings(isolation="none", warm=1), tmp_path / "root")
    late = threading.Event()

    async def work() -> None:
        await create(backend, source)
        loop = asyncio.get_running_loop()
        loop.call_later(2 * REFILL_DELAY_S, late.set)
        loop.run_in_executor(None, late.wait)  # the loop ends when its threads have

    asyncio.run(work())
    gc.collect()
    assert late.is_set()
    assert not caplog.records
    asyncio.run(backend.close())

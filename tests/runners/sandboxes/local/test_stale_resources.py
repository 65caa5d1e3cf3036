"""Nothing is left of the sandboxes of a driver that was killed by ``kill -9``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import SHARED_MEMORY, LocalBackend
from runners.sandboxes.local.confinement import HIERARCHIES
from runners.system.processes.process_names import PREFIX, is_stale, make_unique_name
from runners.system.processes.process_tags import SANDBOX_TAG, kill_tagged
from tests.fakes.sandbox_backends import local_settings, skip_without

pytestmark = pytest.mark.integration

DRIVER = """
import asyncio, sys
from pathlib import Path
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from tests.fakes.sandbox_backends import local_settings

SCRIPT = "setsid -f sleep 1000; env -i setsid -f sleep 1000; touch ready; sleep 1000"

async def main():
    root, isolation = Path(sys.argv[1]), sys.argv[2]
    backend = LocalBackend(local_settings(isolation=isolation), root)
    sandbox = await backend.create(SandboxSpec("work", Path(sys.argv[3]), "none"))
    work = asyncio.ensure_future(sandbox.run(["bash", "-c", SCRIPT], deadline_s=900))
    while not (sandbox.workspace / "ready").exists():
        await asyncio.sleep(0.01)
    print(backend._name, flush=True)
    await work

asyncio.run(main())
"""


def kill_a_driver(root: Path, isolation: str, source: Path) -> str:
    """Kill a driver while a command runs in its sandbox; return its backend's name."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root), isolation, str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        name = driver.stdout.readline().strip()
        driver.send_signal(signal.SIGKILL)
    return name


def tagged_processes(name: str) -> list[int]:
    """Return the processes with the tag of a backend."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if f"{SANDBOX_TAG}={name}/".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except (OSError, ValueError):
            continue
    return found


def group_members(name: str) -> list[str]:
    """Return the processes in the control groups of a backend."""
    return [
        pid
        for hierarchy in HIERARCHIES
        for group in Path(hierarchy).glob(f"{name}/*/cgroup.procs")
        for pid in group.read_text().split()
    ]


def resources_outside(name: str) -> list[Path]:
    """Return the directories and groups that a backend has outside its run directory."""
    places = [SHARED_MEMORY, *map(Path, HIERARCHIES)]
    return [place / name for place in places if (place / name).exists()]


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.parametrize("isolation", ["bubblewrap", "unshare", "none"])
def test_everything_dies_with_its_driver(tmp_path: Path, source: Path, isolation: str) -> None:
    skip_without(isolation)
    name = kill_a_driver(tmp_path / "root", isolation, source)
    wait_until(lambda: not tagged_processes(name) and not group_members(name))


@pytest.mark.parametrize("isolation", ["bubblewrap", "unshare", "none"])
async def test_the_next_backend_removes_everything_of_a_killed_driver(
    tmp_path: Path, source: Path, isolation: str
) -> None:
    skip_without(isolation)
    root = tmp_path / "root"
    name = kill_a_driver(root, isolation, source)
    assert is_stale(name)
    backend = LocalBackend(local_settings(isolation=isolation), root)  # as a resume makes it
    try:
        assert tagged_processes(name) == []
        assert group_members(name) == [], "a process that cleared its environment is killed too"
        assert resources_outside(name) == []
        assert not (root / "open" / "work").exists()
        sandbox = await backend.create(SandboxSpec("work", source, "none"))
        assert (await sandbox.run(["true"], deadline_s=20)).exit_code == 0
    finally:
        await backend.close()


async def test_a_backend_does_not_touch_the_sandboxes_of_living_drivers(
    tmp_path: Path, source: Path
) -> None:
    first = LocalBackend(local_settings(isolation="none"), tmp_path / "one")
    try:
        sandbox = await first.create(SandboxSpec("work", source, "none"))
        await LocalBackend(local_settings(isolation="none"), tmp_path / "two").close()
        assert sandbox.workspace.exists()
        assert (await sandbox.run(["true"], deadline_s=20)).exit_code == 0
    finally:
        await first.close()


async def test_a_command_cannot_end_its_sandbox_by_sending_sigio(
    backend: LocalBackend, source: Path
) -> None:
    sandbox = await backend.create(SandboxSpec("liar", source, "none"))
    try:
        result = await sandbox.run(["bash", "-c", "kill -IO 1; echo still here"], deadline_s=20)
        assert result.stdout == b"still here\n"
    finally:
        await sandbox.close()


def test_only_names_of_dead_processes_are_stale() -> None:
    own = make_unique_name()
    assert not is_stale(own)
    namespace, pid, started, _ = own.removeprefix(PREFIX).split("-")
    assert is_stale(f"{PREFIX}{namespace}-{pid}-{int(started) + 1}-0")
    for name in ("agentrl-gateway-abc", "agentrl-", "other-1-2-3-4", f"{PREFIX}{pid}-0", "x"):
        assert not is_stale(name)


def test_only_processes_with_exactly_the_tag_are_killed() -> None:
    sleeper = ["sleep", "100"]
    with (
        subprocess.Popen(sleeper, env={SANDBOX_TAG: "test-kill/1"}) as ours,
        subprocess.Popen(sleeper, env={SANDBOX_TAG: "test-kill/11"}) as longer,
        subprocess.Popen(sleeper, env={f"X{SANDBOX_TAG}": "test-kill/1"}) as other,
    ):
        wait_until(lambda: len(tagged_processes("test-kill")) == 3)
        assert kill_tagged(SANDBOX_TAG, "test-kill/1".__eq__) == 1
        assert ours.wait() == -signal.SIGKILL
        assert (longer.poll(), other.poll()) == (None, None)
        longer.kill()
        other.kill()


def plant(place: Path) -> None:
    """Leave directories deeper than any path, behind one that cannot be entered."""
    (place / "shut").mkdir(parents=True)
    handle = os.open(place / "shut", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    (place / "shut").chmod(0)


@pytest.mark.parametrize("isolation", ["bubblewrap", "unshare", "none"])
async def test_leftovers_planted_by_hand_do_not_stop_the_next_start(
    tmp_path: Path, isolation: str
) -> None:
    skip_without(isolation)
    namespace, _, started, number = make_unique_name().removeprefix(PREFIX).split("-")
    stale = SHARED_MEMORY / f"{PREFIX}{namespace}-{os.getpid()}-{int(started) - 1}-{number}"
    root = tmp_path / "root"
    for place in (stale, root / "open" / "work", root / "shared" / "bin"):
        plant(place)
    await LocalBackend(local_settings(isolation=isolation), root).close()
    assert not stale.exists()
    assert not any(tmp_path.iterdir())

"""What ``kill -9`` of a driver leaves of its sandboxes: in the end nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.processes.process_names import PREFIX, is_stale, make_unique_name
from runners.processes.process_tags import SANDBOX_TAG, kill_tagged
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.resource_limits import HIERARCHIES
from runners.sandboxes.local.shared_memory import SHARED_MEMORY
from tests.runners.sandboxes.conftest import PROGRAM, settings

pytestmark = pytest.mark.integration

DRIVER = """
import asyncio, sys
from pathlib import Path
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from tests.runners.sandboxes.conftest import settings

SCRIPT = "setsid -f sleep 1000; env -i setsid -f sleep 1000; touch ready; sleep 1000"

async def main():
    root, isolation = Path(sys.argv[1]), sys.argv[2]
    backend = LocalBackend(settings(isolation=isolation), root)
    sandbox = await backend.create(SandboxSpec("work", Path(sys.argv[3]), "none"))
    work = asyncio.ensure_future(sandbox.run(["bash", "-c", SCRIPT], deadline_s=900))
    while not (sandbox.workspace / "ready").exists():
        await asyncio.sleep(0.01)
    print(backend._name, flush=True)
    await work

asyncio.run(main())
"""


def killed_driver(root: Path, isolation: str, source: Path) -> str:
    """Kill a driver while a command runs in its sandbox; returns its backend's name."""
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


def marked(name: str) -> list[int]:
    """Return the processes that bear the mark of a backend."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if f"{SANDBOX_TAG}={name}/".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except (OSError, ValueError):
            continue
    return found


def grouped(name: str) -> list[str]:
    """Return the processes in the control groups of a backend."""
    return [
        pid
        for hierarchy in HIERARCHIES
        for group in Path(hierarchy).glob(f"{name}/*/cgroup.procs")
        for pid in group.read_text().split()
    ]


def left_outside(name: str) -> list[Path]:
    """Return what a backend has outside its run directory."""
    places = [SHARED_MEMORY, *map(Path, HIERARCHIES)]
    return [place / name for place in places if (place / name).exists()]


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("isolation", ["bubblewrap", "unshare"])
def test_with_namespaces_everything_dies_with_its_driver(
    tmp_path: Path, source: Path, isolation: str
) -> None:
    if shutil.which(PROGRAM[isolation]) is None:
        pytest.skip(f"{PROGRAM[isolation]} is not installed")
    name = killed_driver(tmp_path / "root", isolation, source)
    wait_until(lambda: not marked(name) and not grouped(name))


@pytest.mark.parametrize("isolation", ["bubblewrap", "unshare", "none"])
async def test_the_next_backend_leaves_nothing_of_a_killed_driver(
    tmp_path: Path, source: Path, isolation: str
) -> None:
    if isolation != "none" and shutil.which(PROGRAM[isolation]) is None:
        pytest.skip(f"{PROGRAM[isolation]} is not installed")
    root = tmp_path / "root"
    name = killed_driver(root, isolation, source)
    assert is_stale(name)
    if isolation == "none":
        assert marked(name), "what left its process group lives on"
    backend = LocalBackend(settings(isolation=isolation), root)  # as a resume makes it
    try:
        assert marked(name) == []
        assert grouped(name) == [], "what cleared its environment too"
        assert left_outside(name) == []
        assert not (root / "open" / "work").exists()
        sandbox = await backend.create(SandboxSpec("work", source, "none"))
        assert (await sandbox.run(["true"], deadline_s=20)).exit_code == 0
    finally:
        await backend.close()


async def test_a_backend_leaves_those_of_living_drivers_alone(tmp_path: Path, source: Path) -> None:
    first = LocalBackend(settings(isolation="none"), tmp_path / "one")
    try:
        sandbox = await first.create(SandboxSpec("work", source, "none"))
        await LocalBackend(settings(isolation="none"), tmp_path / "two").close()
        assert sandbox.workspace.exists()
        assert (await sandbox.run(["true"], deadline_s=20)).exit_code == 0
    finally:
        await first.close()


async def test_a_command_cannot_end_its_sandbox_by_pretending_that_the_driver_died(
    backend: LocalBackend, source: Path
) -> None:
    sandbox = await backend.create(SandboxSpec("liar", source, "none"))
    try:
        result = await sandbox.run(["bash", "-c", "kill -IO 1; echo still here"], deadline_s=20)
        assert result.stdout == b"still here\n"
    finally:
        await sandbox.close()


def test_a_name_that_is_no_backend_s_is_nobody_s_orphan() -> None:
    own = make_unique_name()
    assert not is_stale(own)
    namespace, pid, started, _ = own.removeprefix(PREFIX).split("-")
    assert is_stale(f"{PREFIX}{namespace}-{pid}-{int(started) + 1}-0")
    for name in ("agentrl-gateway-abc", "agentrl-", "other-1-2-3-4", f"{PREFIX}{pid}-0", "x"):
        assert not is_stale(name)


def test_only_what_bears_the_very_mark_is_killed() -> None:
    sleeper = ["sleep", "100"]
    with (
        subprocess.Popen(sleeper, env={SANDBOX_TAG: "test-kill/1"}) as ours,
        subprocess.Popen(sleeper, env={SANDBOX_TAG: "test-kill/11"}) as longer,
        subprocess.Popen(sleeper, env={f"X{SANDBOX_TAG}": "test-kill/1"}) as other,
    ):
        wait_until(lambda: len(marked("test-kill")) == 3)
        assert kill_tagged(SANDBOX_TAG, "test-kill/1".__eq__) == 1
        assert ours.wait() == -signal.SIGKILL
        assert (longer.poll(), other.poll()) == (None, None)
        longer.kill()
        other.kill()

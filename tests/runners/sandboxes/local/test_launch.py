"""A launcher is in its control group and limited before its command can start."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.inside import launcher
from runners.sandboxes.local.launch import LaunchPlan, boot, end
from runners.system.processes.process_tags import SANDBOX_TAG

pytestmark = pytest.mark.integration

LAUNCHER = [sys.executable, "-I", "-S", str(Path(launcher.__file__))]


def make_plan(
    argv: Callable[[list[str], int], list[str]],
    *,
    namespaced: bool,
    move_to_group: Callable[[int], None] = lambda pid: None,
    set_limits: Callable[[int], None] = lambda pid: None,
) -> LaunchPlan:
    return LaunchPlan(
        argv,
        {SANDBOX_TAG: "none/0", "PATH": os.defpath},
        None,
        namespaced=namespaced,
        listens=False,
        move_to_group=move_to_group,
        set_limits=set_limits,
    )


async def test_a_launcher_is_moved_to_its_group_and_then_limited() -> None:
    calls: list[tuple[str, int]] = []

    def move(pid: int) -> None:
        while psutil.Process(pid).status() != psutil.STATUS_SLEEPING:
            pass  # until it waits for its command
        calls.append(("moved", pid))

    launcher = await boot(
        make_plan(
            lambda launch, pid_fd: [*LAUNCHER, *launch],
            namespaced=False,
            move_to_group=move,
            set_limits=lambda pid: calls.append(("limited", pid)),
        )
    )
    pid = launcher.popen.pid
    await end(launcher)
    assert calls == [("moved", pid), ("limited", pid)]


async def test_a_launcher_that_cannot_be_moved_to_its_group_is_killed() -> None:
    pids: list[int] = []

    def refuse(pid: int) -> None:
        pids.append(pid)
        raise OSError("the group is full")

    plan = make_plan(
        lambda launch, pid_fd: [*LAUNCHER, *launch], namespaced=False, move_to_group=refuse
    )
    with pytest.raises(SandboxError, match="cannot set the limits of a sandbox: the group is full"):
        await boot(plan)
    assert not psutil.pid_exists(pids[0])


async def test_a_first_process_other_than_the_reported_one_gets_no_command() -> None:
    def argv(launch: list[str], pid_fd: int) -> list[str]:
        script = f'echo \'{{"child-pid": 1}}\' >&{pid_fd}; exec "$@"'
        return ["bash", "-c", script, "bash", *LAUNCHER, *launch]

    with pytest.raises(SandboxError, match=r"its first process is \d+, not 1"):
        await boot(make_plan(argv, namespaced=True))


async def test_a_report_without_a_process_id_is_quoted() -> None:
    def argv(launch: list[str], pid_fd: int) -> list[str]:
        return ["bash", "-c", f"echo '{{}}' >&{pid_fd}; exec sleep 60"]

    with pytest.raises(SandboxError, match="reported no process id"):
        await boot(make_plan(argv, namespaced=True))


@pytest.mark.parametrize("background", ["", "sleep 1 >/dev/null 2>&1 & "])
async def test_the_output_of_a_start_that_fails_is_quoted(background: str) -> None:
    """``background`` holds the descriptor for the pid open for a while."""
    script = f"{background}echo no namespaces >&2; exit 1"
    with pytest.raises(SandboxError, match="it printed: no namespaces"):
        await boot(make_plan(lambda launch, pid_fd: ["bash", "-c", script], namespaced=True))


async def test_the_group_holds_the_processes_inside_and_none_outside(
    backend: LocalBackend, source: Path
) -> None:
    if "control group" not in backend.guarantees()["processes"]:
        pytest.skip("no control groups here")
    sandbox = await backend.create(SandboxSpec("grouped", source, "none"))
    running = asyncio.create_task(sandbox.run(["sleep", "1000"], deadline_s=1000))
    while not (command := _children("sleep")):
        await asyncio.sleep(0.01)
    first = command[0].parent()
    assert first is not None
    outside = first.parent()
    assert outside is not None
    assert [_in_group(each.pid) for each in (command[0], first, outside)] == [True, True, False]
    await sandbox.close()
    with pytest.raises(asyncio.CancelledError):
        await running


def _children(name: str) -> list[psutil.Process]:
    ours = psutil.Process().children(recursive=True)
    return [each for each in ours if each.name() == name]


def _in_group(pid: int) -> bool:
    return "/grouped" in Path(f"/proc/{pid}/cgroup").read_text()


def test_a_launcher_without_a_namespace_of_its_own_kills_nobody() -> None:
    """As under a site's `bwrap` that isolates nothing: pid -1 is all that the user runs."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("no user may make namespaces here")
    folder = str(Path(launcher.__file__).parent)
    program = f"import sys; sys.path.append({folder!r}); import launcher; launcher.end_namespace()"
    beside = 'sleep 600 & "$@"; kill $!; wait $!; test $? = 143'  # by this signal, not by SIGKILL
    command = [*apart, "sh", "-c", beside, "sh", sys.executable, "-I", "-S", "-c", program]
    assert subprocess.run(command, check=False).returncode == 0

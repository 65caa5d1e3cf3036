"""What is booted is where its command is to be before the command can start."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runners.processes.process_tags import SANDBOX_TAG
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local import launcher
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.boot import Start, boot, end

LAUNCHER = [sys.executable, "-I", "-S", str(Path(launcher.__file__))]


def start(
    argv: Callable[[list[str], int], list[str]],
    *,
    namespaced: bool,
    admit: Callable[[int], None] = lambda pid: None,
    limit: Callable[[int], None] = lambda pid: None,
) -> Start:
    env = {SANDBOX_TAG: "none/0", "PATH": os.defpath}
    return Start(argv, env, None, namespaced=namespaced, listens=False, admit=admit, limit=limit)


async def test_what_is_booted_is_admitted_then_limited_then_given_a_command() -> None:
    seen: list[tuple[str, int]] = []

    def admit(pid: int) -> None:
        while psutil.Process(pid).status() != psutil.STATUS_SLEEPING:
            pass  # until it waits for its command
        seen.append(("admitted", pid))

    booted = await boot(
        start(
            lambda launch, tell: [*LAUNCHER, *launch],
            namespaced=False,
            admit=admit,
            limit=lambda pid: seen.append(("limited", pid)),
        )
    )
    pid = booted.popen.pid
    await end(booted)
    assert seen == [("admitted", pid), ("limited", pid)]


async def test_what_cannot_be_admitted_is_ended() -> None:
    tried: list[int] = []

    def refuse(pid: int) -> None:
        tried.append(pid)
        raise OSError("no room in the group")

    with pytest.raises(SandboxError, match="cannot admit a sandbox: no room in the group"):
        await boot(start(lambda launch, tell: [*LAUNCHER, *launch], namespaced=False, admit=refuse))
    assert not psutil.pid_exists(tried[0])


async def test_another_first_process_than_was_told_gets_no_command() -> None:
    def argv(launch: list[str], tell: int) -> list[str]:
        script = f'echo \'{{"child-pid": 1}}\' >&{tell}; exec "$@"'
        return ["bash", "-c", script, "bash", *LAUNCHER, *launch]

    with pytest.raises(SandboxError, match="1 was to be its first process, not"):
        await boot(start(argv, namespaced=True))


async def test_what_tells_no_process_id_is_quoted() -> None:
    def argv(launch: list[str], tell: int) -> list[str]:
        return ["bash", "-c", f"echo '{{}}' >&{tell}; exec sleep 60"]

    with pytest.raises(SandboxError, match="told no process id"):
        await boot(start(argv, namespaced=True))


@pytest.mark.parametrize("left", ["", "sleep 1 >/dev/null 2>&1 & "])
async def test_what_ends_before_it_tells_its_first_process_is_quoted(left: str) -> None:
    """``left`` holds the descriptor open for a while."""
    script = f"{left}echo no namespaces >&2; exit 1"
    with pytest.raises(SandboxError, match="it said: no namespaces"):
        await boot(start(lambda launch, tell: ["bash", "-c", script], namespaced=True))


async def test_the_group_holds_what_runs_inside_and_nothing_around_it(
    backend: LocalBackend, source: Path
) -> None:
    if "control group" not in backend.guarantees()["processes"]:
        pytest.skip("no control groups here")
    sandbox = await backend.create(SandboxSpec("grouped", source, "none"))
    running = asyncio.create_task(sandbox.run(["sleep", "20"], deadline_s=30))
    async with asyncio.timeout(20):
        while not (command := _children("sleep")):
            await asyncio.sleep(0.01)
    first = command[0].parent()
    assert first is not None
    around = first.parent()
    assert around is not None
    assert [_grouped(each.pid) for each in (command[0], first, around)] == [True, True, False]
    await sandbox.close()
    with pytest.raises(asyncio.CancelledError):
        await running


def _children(name: str) -> list[psutil.Process]:
    ours = psutil.Process().children(recursive=True)
    return [each for each in ours if each.name() == name]


def _grouped(pid: int) -> bool:
    return "/grouped" in Path(f"/proc/{pid}/cgroup").read_text()

"""The protocol of detached commands, on a machine that the E2B service on loopback gives."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2b import AsyncSandbox

from runners.sandboxes.contract import CommandResult, SandboxError, SandboxSpec
from runners.sandboxes.remote import detached
from runners.sandboxes.remote.detached import Command, execute, read_report
from runners.sandboxes.remote.e2b import E2bBackend
from runners.sandboxes.remote.e2b_calls import Calls
from runners.sandboxes.remote.e2b_machine import E2bMachine
from runners.sandboxes.remote.machine import STATE
from tests.fakes.e2b.server import KEY, E2bServer

BOMB = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))  # or nobody's machine survives this test
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.02)
"""
RUN = f"{STATE}/runs/by-hand"


@pytest.fixture
async def machine(
    server: E2bServer, backend: E2bBackend, source: Path
) -> AsyncIterator[E2bMachine]:
    """Yield a machine with the supervisor and a workspace on it."""
    sandbox = await backend.create(SandboxSpec("one", source, "none"))
    (sandbox_id,) = server.machines
    real = await AsyncSandbox.connect(
        sandbox_id, api_key=KEY, api_url=server.url, sandbox_url=server.url
    )
    yield E2bMachine(real, Calls(2, KEY), 3600)
    await sandbox.close()


def command(script: str, *, workdir: str = "/workspace", deadline_s: float = 30) -> Command:
    return Command(["sh", "-c", script], {}, workdir, b"", deadline_s, 65536)


def attend(*, looks: int = 200, deadline: float = 30) -> str:
    return detached.ATTEND.format(
        **{"directory": RUN, "supervise": detached.SUPERVISE_AT, "workdir": "/workspace"},
        **{"deadline": deadline, "looks": looks, "limit": 1000, "head": 500, "tail": 500},
    )


async def test_calls_that_come_twice_start_a_command_once(machine: E2bMachine) -> None:
    script = "echo ran >> ran.txt; sleep 0.3; cat ran.txt"
    await machine.put(f"{RUN}/command", f"set -- sh -c '{script}'\n".encode())
    said = await asyncio.gather(*(machine.sh(attend(), deadline_s=30) for _ in range(5)))
    results = [read_report(each, 0.0) for each in said]
    assert results == [CommandResult(0, b"ran\n", b"", 0.0)] * 5


async def test_the_deadline_is_kept_inside_when_nobody_calls(machine: E2bMachine) -> None:
    await machine.put(f"{RUN}/command", b"set -- sh -c 'sleep 0.6; touch late'\n")
    said = await machine.sh(attend(looks=0, deadline=0.2), deadline_s=30)
    assert read_report(said, 0.0) is None
    await asyncio.sleep(1)
    said = await machine.sh(f"ls {RUN} /workspace", deadline_s=30)
    assert {b"exit", b"timed_out"} <= set(said.split())
    assert b"late" not in said.split()


async def test_a_supervisor_that_is_killed_is_told_from_one_that_works(machine: E2bMachine) -> None:
    await machine.put(f"{RUN}/command", b"set -- sleep 60\n")
    assert read_report(await machine.sh(attend(looks=2), deadline_s=30), 0.0) is None
    await machine.sh(f"while [ ! -s {RUN}/pid ]; do sleep 0.1; done", deadline_s=30)
    await machine.sh(f"kill -KILL $(cat {RUN}/pid)", deadline_s=30)
    with pytest.raises(SandboxError, match="supervisor says: lost"):
        read_report(await machine.sh(attend(looks=2), deadline_s=30), 0.0)


async def test_a_working_directory_that_is_not_there_is_no_exit_code(machine: E2bMachine) -> None:
    with pytest.raises(SandboxError, match="no workdir"):
        await execute(machine, command("true", workdir="/no/such"))


async def test_the_agent_can_neither_read_nor_forge_a_report(machine: E2bMachine) -> None:
    script = f"echo 0 > {RUN}/exit; ls {STATE}; kill -TERM $PPID; exit 7"
    result = await execute(machine, command(script))
    assert result.exit_code == 7, result
    assert b"Permission denied" in result.stderr


async def test_a_commands_environment_is_not_roots(machine: E2bMachine) -> None:
    plant = (
        "mkdir bin; for p in setsid setpriv sh cat; do printf '#!/bin/sh\\nid -u >> /tmp/ran' > "
    )
    await execute(machine, command(f"{plant} bin/$p; chmod +x bin/$p; done; /bin/touch /tmp/ran"))
    path = {"PATH": "/workspace/bin:/usr/bin:/bin"}
    asked = Command(["/bin/sh", "-c", "sh; /bin/cat /tmp/ran"], path, "/workspace", b"", 30, 100)
    assert (await execute(machine, asked)).stdout == b"61000\n"


async def test_secrets_are_gone_with_the_command(machine: E2bMachine) -> None:
    asked = Command(["true"], {"API_KEY": "top secret"}, "/workspace", b"top secret", 30, 100)
    await execute(machine, asked)
    said = await machine.sh(f"grep -rl 'top secret' {STATE} || echo none", deadline_s=30)
    assert said.split()[-1] == b"none"


async def test_a_fork_bomb_ends_at_the_deadline(machine: E2bMachine) -> None:
    asked = Command(["python", "-c", BOMB], {}, "/workspace", b"", 1.0, 65536)
    result = await execute(machine, asked)
    assert result.timed_out, result
    script = "grep -ls '^Uid:.61000' /proc/[0-9]*/status | wc -l"
    assert (await machine.sh(script, deadline_s=30)).split()[-1] == b"0"


def report(code: str = "0", ending: str = "ended", out: bytes = b"", err: bytes = b"") -> bytes:
    lines = ["a profile that prints", "agentrl-report", code, ending]
    for text in (out, err):
        lines += [str(len(text)), base64.b64encode(text).decode(), ""]
    return "\n".join([*lines, ""]).encode()


def test_a_report_is_read() -> None:
    said = report("3", out=b"\x00\xff", err=b"e")
    assert read_report(said, 1.5) == CommandResult(3, b"\x00\xff", b"e", 1.5)
    assert read_report(report("137"), 1.5) == CommandResult(-9, b"", b"", 1.5)
    late = read_report(report("137", "timed_out"), 1.5)
    assert late == CommandResult(124, b"", b"", 1.5, timed_out=True)
    assert read_report(b"profile\nagentrl-report\n", 1.5) is None


def test_a_report_that_was_cut_anywhere_is_an_error_or_none() -> None:
    whole = report("0", out=b"out" * 10, err=b"err" * 10)
    for end in range(whole.index(b"agentrl-report\n") + 16, len(whole)):
        with pytest.raises(SandboxError):
            read_report(whole[:end], 0.0)

"""Commands run once and end, whatever happens to the calls that E2B's SDK makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from e2b import AsyncSandbox

from runners.sandboxes.contract import OversizedError, SandboxError, SandboxSpec
from runners.sandboxes.remote.e2b import E2bBackend, E2bMachine
from runners.sandboxes.remote.e2b_calls import E2bCalls
from runners.sandboxes.remote.sandbox import RemoteSandbox
from runners.tasks.patches.patch import capture_patch
from tests.fakes.e2b.server import KEY, E2bServer
from tests.fakes.sandbox_backends import e2b_settings
from tests.runners.tasks.example_repositories import make_task

pytestmark = pytest.mark.integration

START = "POST /process.Process/Start"
ONCE = "echo ran >> ran.txt; sleep 0.1; echo done"


@pytest.fixture
async def sandbox(backend: E2bBackend, source: Path) -> AsyncIterator[RemoteSandbox]:
    sandbox = await backend.create(SandboxSpec("one", source, "none"))
    yield sandbox
    await sandbox.close()


@pytest.mark.parametrize(
    ("route", "what", "more"),
    [
        (START, "cut", {}),
        (START, "drop", {}),
        (START, "status", {"status": 429}),
        (START, "status", {"status": 502, "message": "port is not open"}),
        ("POST /files", "drop", {}),
        ("POST /files", "lose", {}),
        ("POST /files", "status", {"status": 500}),
    ],
)
async def test_a_failed_call_is_retried_and_the_command_runs_once(
    server: E2bServer, sandbox: RemoteSandbox, route: str, what: Any, more: dict[str, Any]
) -> None:
    server.plan(route, what, times=2, **more)
    result = await sandbox.run(["bash", "-c", ONCE], deadline_s=30)
    assert (result.exit_code, result.stdout) == (0, b"done\n")
    assert server.faults.planned[-1].times == 0
    lines = await sandbox.run(["cat", "ran.txt"], deadline_s=30)
    assert lines.stdout == b"ran\n"


@pytest.mark.parametrize("what", ["cut", "drop"])
async def test_a_download_that_is_cut_off_starts_again(
    server: E2bServer, sandbox: RemoteSandbox, what: Any
) -> None:
    await sandbox.run(["bash", "-c", "head -c 3000000 /dev/urandom > big"], deadline_s=30)
    server.plan("GET /files", what, times=1)
    async with sandbox.on_host() as workspace:
        assert (workspace / "big").stat().st_size == 3_000_000
    assert server.requests.count("GET /files") == 2


async def test_a_lasting_failure_is_a_sandbox_error(
    server: E2bServer, sandbox: RemoteSandbox
) -> None:
    server.plan(START, "drop", times=99)
    with pytest.raises(SandboxError, match=r"cannot run a script: .* \(3 tries\)"):
        await sandbox.run(["true"], deadline_s=30)
    server.faults.planned.clear()


async def test_a_call_to_an_ended_sandbox_is_not_retried(
    server: E2bServer, sandbox: RemoteSandbox
) -> None:
    await server.close()
    before = len(server.requests)
    with pytest.raises(SandboxError, match="was not found"):
        await sandbox.run(["true"], deadline_s=30)
    assert server.requests[before:].count("POST /files") == 1
    with pytest.raises(SandboxError, match="was not found"):
        async with sandbox.on_host():
            pass


async def test_over_http_1_the_sdk_does_not_keep_its_own_timeout(server: E2bServer) -> None:
    server.keeps_deadlines = False
    real = await AsyncSandbox.create(
        api_key=KEY, api_url=server.url, sandbox_url=server.url, timeout=60
    )
    done = await real.commands.run("sleep 3; echo late", timeout=2)
    assert done.stdout.endswith("late\n")
    await real.kill()


async def test_a_call_ends_at_our_deadline_when_the_service_keeps_none(server: E2bServer) -> None:
    server.keeps_deadlines = False
    real = await AsyncSandbox.create(
        api_key=KEY, api_url=server.url, sandbox_url=server.url, timeout=600
    )
    machine = E2bMachine(real, E2bCalls(2, KEY), 600)
    with pytest.raises(SandboxError, match=r"Timeout.*\(2 tries\)"):
        await machine.run_script("sleep 300", deadline_s=0.2)
    await machine.terminate()


async def test_the_lifetime_is_renewed_while_a_sandbox_is_used(
    server: E2bServer, source: Path, tmp_path: Path
) -> None:
    backend = E2bBackend(e2b_settings(server, lifetime_s=150), tmp_path / "driver")
    sandbox = await backend.create(SandboxSpec("one", source, "none"))
    (machine,) = server.machines.values()
    renewed = len(machine.renewed)
    await sandbox.run(["true"], deadline_s=30)
    assert machine.renewed[renewed:]
    assert set(machine.renewed) == {150}
    await sandbox.close()


async def test_a_lifetime_that_is_long_enough_costs_no_call(
    server: E2bServer, sandbox: RemoteSandbox
) -> None:
    (machine,) = server.machines.values()
    await sandbox.run(["true"], deadline_s=30)
    assert not machine.renewed


async def test_a_workspace_that_is_too_large_is_refused_and_not_fetched(
    server: E2bServer, sandbox: RemoteSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(tmp_path / "task")
    monkeypatch.setattr("runners.sandboxes.remote.sandbox.UNPACKED_LIMIT", 1 << 20)
    await sandbox.run(["bash", "-c", "head -c 2000000 /dev/urandom > big"], deadline_s=30)
    with pytest.raises(OversizedError, match="has more than 1024 MB"):
        async with sandbox.on_host():
            pass
    patch = await capture_patch(task, sandbox)
    assert (patch.diff, patch.refused) == (
        b"",
        "the workspace has more than 1024 MB or 200000 files",
    )
    assert "GET /files" not in server.requests, "nothing of it is fetched"
    await sandbox.run(["truncate", "-s", "500000", "big"], deadline_s=30)
    async with sandbox.on_host() as workspace:
        assert (workspace / "big").stat().st_size == 500_000

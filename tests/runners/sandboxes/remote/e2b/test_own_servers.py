"""Servers of one's own that speak E2B's API, as ROCK's guide describes its interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.e2b import E2bBackend
from tests.fakes.e2b.server import E2bServer
from tests.fakes.sandbox_backends import e2b_settings

pytestmark = pytest.mark.integration
CREATE, OLD_CREATE = "POST /v2/sandboxes", "POST /sandboxes"


@pytest.fixture
def older(server: E2bServer) -> E2bServer:
    server.older = True
    return server


@pytest.fixture
def open_backend(older: E2bServer, tmp_path: Path) -> E2bBackend:
    return E2bBackend(e2b_settings(older, egress="open"), tmp_path / "driver")


async def test_a_server_with_the_first_version_of_the_api_is_usable(
    older: E2bServer, open_backend: E2bBackend, source: Path
) -> None:
    for name in ("one", "two"):
        sandbox = await open_backend.create(SandboxSpec(name, source, "none"))
        result = await sandbox.run(["sh", "-c", "cat a.txt; echo new > b.txt"], deadline_s=90)
        assert result.stdout == b"one\n", result
        async with sandbox.on_host() as workspace:
            assert (workspace / "b.txt").read_text() == "new\n"
        await sandbox.close()
    assert older.requests.count(CREATE) == 1
    assert older.requests.count(OLD_CREATE) == 2
    assert {each.created["autoPause"] for each in older.ended} == {False}
    assert not older.machines
    promise = open_backend.guarantees()["no network but the gateway"]
    assert promise.startswith("NOT KEPT, nor for graders")


async def test_a_lost_answer_leaves_one_sandbox_also_without_keys(
    older: E2bServer, open_backend: E2bBackend, source: Path
) -> None:
    older.plan(OLD_CREATE, "lose", times=1)
    sandbox = await open_backend.create(SandboxSpec("one", source, "none"))
    assert older.requests.count(OLD_CREATE) == 2
    assert len(older.machines) == 1
    assert (await sandbox.run(["cat", "a.txt"], deadline_s=30)).stdout == b"one\n"
    await sandbox.close()


async def test_the_servers_refusal_of_network_rules_is_the_error(
    older: E2bServer, tmp_path: Path, source: Path
) -> None:
    backend = E2bBackend(e2b_settings(older), tmp_path / "driver")
    with pytest.raises(SandboxError, match="network is not supported"):
        await backend.create(SandboxSpec("one", source, "none"))
    assert not older.machines


async def test_a_sandbox_ends_at_its_timeout_and_is_not_paused(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    sandbox = await backend.create(SandboxSpec("one", source, "none"))
    (machine,) = server.machines.values()
    assert machine.created["autoPause"] is False
    assert OLD_CREATE not in server.requests
    await sandbox.close()

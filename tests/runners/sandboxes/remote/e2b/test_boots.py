"""Sandboxes are booted once each, whatever the service does, with the right request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.e2b import E2bBackend
from tests.fakes.e2b.server import KEY, E2bServer
from tests.fakes.sandbox_backends import e2b_settings

pytestmark = pytest.mark.integration

CREATE = "POST /v2/sandboxes"


def spec(source: Path, name: str = "train-1-a0", **more: object) -> SandboxSpec:
    return SandboxSpec(name, source, "none", **more)  # type: ignore[arg-type]


async def test_a_rate_limit_is_retried(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.plan(CREATE, "status", status=429, times=1)
    server.plan(CREATE, "status", status=503, times=1)
    sandbox = await backend.create(spec(source))
    assert server.requests.count(CREATE) == 3
    assert len(server.machines) == 1
    await sandbox.close()


async def test_a_lasting_rate_limit_is_reported_as_overload(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.plan(CREATE, "status", status=429, times=99)
    with pytest.raises(SandboxError, match="429") as caught:
        await backend.create(spec(source))
    assert caught.value.pushed_back
    assert server.requests.count(CREATE) == 3


async def test_a_lost_answer_makes_no_second_sandbox(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.plan(CREATE, "lose", times=1)
    sandbox = await backend.create(spec(source))
    assert server.requests.count(CREATE) == 2
    assert len(server.machines) == 1
    await sandbox.close()
    assert not server.machines


async def test_a_boot_that_fails_leaves_no_sandbox(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.plan(CREATE, "lose", times=99)
    with pytest.raises(SandboxError, match="cannot boot a sandbox") as caught:
        await backend.create(spec(source))
    assert not caught.value.pushed_back
    assert len(server.ended) == 1
    assert not server.machines


async def test_a_boot_that_is_cancelled_leaves_no_sandbox(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.plan("POST /files", "slow", seconds=60, times=1)
    work = asyncio.ensure_future(backend.create(spec(source)))
    while "POST /files" not in server.requests:
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not server.machines


async def test_the_error_for_an_image_without_a_tool_names_the_tool(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.profile = "command() { return 1; }\n"
    with pytest.raises(SandboxError, match="the image has no base64"):
        await backend.create(spec(source))
    assert not server.machines


async def test_a_wrong_key_is_not_retried(
    server: E2bServer, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2B_API_KEY", "e2b_wrong")
    backend = make_backend(e2b_settings(server), tmp_path / "driver")
    with pytest.raises(SandboxError, match="401") as caught:
        await backend.create(spec(source))
    assert server.requests.count(CREATE) == 1
    assert "e2b_wrong" not in str(caught.value)


async def test_the_key_appears_in_no_error(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.plan(CREATE, "status", status=400, message=f"what is {KEY}?")
    with pytest.raises(SandboxError, match=r"what is \*\*\*\?") as caught:
        await backend.create(spec(source))
    assert caught.value.__cause__ is None


def test_a_missing_key_is_named(
    server: E2bServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(SandboxError, match="set E2B_API_KEY in the environment"):
        make_backend(e2b_settings(server), tmp_path / "driver")


async def test_the_key_is_written_nowhere(
    server: E2bServer, backend: E2bBackend, source: Path, tmp_path: Path
) -> None:
    sandbox = await backend.create(spec(source))
    result = await sandbox.run(["env"], deadline_s=30)
    assert KEY.encode() not in result.stdout
    files = [path for path in (tmp_path / "driver").rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)
    await sandbox.close()


async def test_without_images_an_image_is_a_template(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    for image, template in ((None, "base"), ("mine", "mine")):
        sandbox = await backend.create(spec(source, image=image))
        (machine,) = server.machines.values()
        assert machine.created["templateID"] == template
        assert machine.created["timeout"] == 3600
        assert set(machine.created["metadata"]) == {"agentrl_run", "agentrl_name"}
        await sandbox.close()


async def test_a_service_of_images_gets_image_and_size(
    server: E2bServer, source: Path, tmp_path: Path
) -> None:
    config = e2b_settings(server, image_key="example.com/image", size="lg")
    sandbox = await E2bBackend(config, tmp_path / "driver").create(spec(source, image="swe:1"))
    (machine,) = server.machines.values()
    assert machine.created["templateID"] == "base"
    metadata = machine.created["metadata"]
    assert (metadata["example.com/image"], metadata["example.com/size"]) == ("swe:1", "lg")
    await sandbox.close()


async def test_the_network_rules_allow_the_gateway_alone(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    agent = SandboxSpec("a", source, "gateway", gateway_url="https://gateway.example/x")
    for sandbox_spec, wanted in (
        (agent, {"allowOut": ["gateway.example"], "denyOut": ["0.0.0.0/0"]}),
        (spec(source), {"denyOut": ["0.0.0.0/0"]}),
    ):
        sandbox = await backend.create(sandbox_spec)
        (machine,) = server.machines.values()
        assert machine.created["network"] == wanted
        assert sandbox.gateway_url == sandbox_spec.gateway_url
        await sandbox.close()


async def test_the_images_own_files_are_the_workspace_of_a_spec_without_source(
    server: E2bServer, backend: E2bBackend
) -> None:
    server.profile = "mkdir -p /testbed && echo own > /testbed/own.txt\n"
    sandbox = await backend.create(SandboxSpec("image", None, "none", workdir="/testbed"))
    result = await sandbox.run(["bash", "-c", "cat own.txt && echo more > more.txt"], deadline_s=30)
    assert result.stdout == b"own\n", result
    async with sandbox.on_host() as workspace:
        assert (workspace / "more.txt").read_text() == "more\n"
    await sandbox.close()


async def test_a_driver_ends_the_sandboxes_of_an_earlier_driver_of_its_run(
    server: E2bServer, backend: E2bBackend, source: Path, tmp_path: Path
) -> None:
    for name in ("left", "alive"):
        await backend.create(spec(source, name))
    other_run = E2bBackend(e2b_settings(server), tmp_path / "other")
    stranger = await other_run.create(spec(source, "left"))
    next_driver = E2bBackend(e2b_settings(server), tmp_path / "driver")
    await next_driver.reap({"left": {}, "gone": {}})
    names = [machine.created["metadata"]["agentrl_name"] for machine in server.machines.values()]
    assert sorted(names) == ["alive", "left"]
    await next_driver.close()
    assert len(server.machines) == 1
    await stranger.close()
    assert not server.machines


@pytest.mark.slow
async def test_sixty_four_boot_at_once(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    async def one(number: int) -> bytes:
        sandbox = await backend.create(spec(source, f"many-{number}"))
        try:
            return (await sandbox.run(["cat", "a.txt"], deadline_s=60)).stdout
        finally:
            await sandbox.close()

    assert await asyncio.gather(*(one(number) for number in range(64))) == [b"one\n"] * 64
    assert not server.machines


@pytest.mark.parametrize("status", [429, 503])
async def test_a_retry_waits_as_long_as_the_service_asks(
    server: E2bServer, backend: E2bBackend, source: Path, status: int
) -> None:
    server.plan(CREATE, "status", status=status, times=1, retry_after_s=1)
    sandbox = await backend.create(spec(source))
    first, second = (
        at for at, route in zip(server.times, server.requests, strict=True) if route == CREATE
    )
    assert second - first >= 1
    await sandbox.close()


async def test_an_answer_is_not_retried_by_the_sdk_and_by_us(
    server: E2bServer, backend: E2bBackend, source: Path
) -> None:
    server.plan(CREATE, "status", status=502, times=99)
    with pytest.raises(SandboxError, match="502"):
        await backend.create(spec(source))
    assert server.requests.count(CREATE) == 3


async def test_no_more_sandboxes_boot_at_once_than_configured(
    server: E2bServer, source: Path, tmp_path: Path
) -> None:
    backend = E2bBackend(e2b_settings(server, boots=2), tmp_path / "driver")
    server.plan(CREATE, "slow", seconds=0.05, times=99)
    sandboxes = await asyncio.gather(*(backend.create(spec(source, f"s{n}")) for n in range(6)))
    assert server.most_at_once[CREATE] == 2
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))

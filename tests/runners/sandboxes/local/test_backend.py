"""The local backend: choosing an isolation, the gateway's socket, names, removal."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from tests.fakes.sandbox_backends import local_settings
from tests.fakes.scripted_gateway import Reply, ScriptedGateway, say, scripted_gateway

pytestmark = pytest.mark.integration

ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1] + "/v1/messages", b"{}")
print(urllib.request.urlopen(request).read().decode())
"""


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(tmp_path, [Reply([say("hello")])] * 4) as gateway:
        yield gateway


def with_gateway(gateway: ScriptedGateway, source: Path, key: str = "key") -> SandboxSpec:
    return SandboxSpec(
        "agent",
        source,
        "gateway",
        gateway_control=gateway.control,
        gateway_url=gateway.url,
        session_key=key,
    )


def only_these_programs(directory: Path, monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    """Make a PATH on which nothing but some programs is found."""
    directory.mkdir()
    for name in programs:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not installed")
        (directory / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(directory))


async def test_the_gateway_is_reached_through_a_socket_passed_out(
    backend: LocalBackend, gateway: ScriptedGateway, source: Path
) -> None:
    sandbox = await backend.create(with_gateway(gateway, source))
    try:
        assert sandbox.gateway_url == "http://127.0.0.1:8080"
        result = await sandbox.run(["python", "-c", ASK, sandbox.gateway_url], deadline_s=20)
        assert b"message_stop" in result.stdout, result.stderr
        again = await sandbox.run(["python", "-c", ASK, sandbox.gateway_url], deadline_s=20)
        assert b"message_stop" in again.stdout, again.stderr
        assert len(gateway.requests) == 2
        command = ["python", "-c", ASK, gateway.url]
        host = await sandbox.run(command, deadline_s=20)
        assert b"refused" in host.stderr, "only the passed socket leads out"
    finally:
        await sandbox.close()


async def test_the_proxies_of_the_host_are_not_used_inside(
    backend: LocalBackend,
    gateway: ScriptedGateway,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    sandbox = await backend.create(with_gateway(gateway, source))
    try:
        command = ["python", "-c", ASK, sandbox.gateway_url or ""]
        result = await sandbox.run(command, deadline_s=20)
        assert b"message_stop" in result.stdout, result.stderr
    finally:
        await sandbox.close()


async def test_a_session_that_the_gateway_does_not_know_is_a_sandbox_error(
    backend: LocalBackend, gateway: ScriptedGateway, source: Path
) -> None:
    sandbox = await backend.create(with_gateway(gateway, source, key="stranger"))
    try:
        with pytest.raises(SandboxError, match="refused"):
            await sandbox.run(["true"], deadline_s=20)
    finally:
        await sandbox.close()


async def test_a_gateway_that_is_gone_is_a_sandbox_error(
    backend: LocalBackend, tmp_path: Path, source: Path
) -> None:
    spec = SandboxSpec("agent", source, "gateway", gateway_control=tmp_path / "nowhere")
    sandbox = await backend.create(spec)
    try:
        with pytest.raises(SandboxError, match="does not answer"):
            await sandbox.run(["true"], deadline_s=20)
    finally:
        await sandbox.close()


async def test_a_sandbox_without_network_has_no_gateway(
    backend: LocalBackend, source: Path
) -> None:
    sandbox = await backend.create(SandboxSpec("test", source, "none"))
    try:
        assert sandbox.gateway_url is None
        url = "http://127.0.0.1:8080"
        result = await sandbox.run(["python", "-c", ASK, url], deadline_s=20)
        assert b"refused" in result.stderr
    finally:
        await sandbox.close()


async def test_mounts_are_read_only(backend: LocalBackend, source: Path, tmp_path: Path) -> None:
    tool = tmp_path / "tool.sh"
    tool.write_text("echo tool\n")
    mounts = {"/opt/tool/tool.sh": tool}
    sandbox = await backend.create(SandboxSpec("test", source, "none", mounts=mounts))
    try:
        script = "bash /opt/tool/tool.sh; echo > /opt/tool/tool.sh; rm -f /opt/tool/tool.sh"
        result = await sandbox.run(["bash", "-c", script], deadline_s=20)
        assert result.stdout == b"tool\n"
        assert tool.read_text() == "echo tool\n"
    finally:
        await sandbox.close()


async def test_closing_kills_and_removes(backend: LocalBackend, source: Path) -> None:
    sandbox = await backend.create(SandboxSpec("test", source, "none"))
    script = "mkdir -p locked/in; touch locked/in/file; chmod 0 locked/in locked; sleep 300"
    work = asyncio.ensure_future(sandbox.run(["bash", "-c", script], deadline_s=200))
    while not (sandbox.workspace / "locked").exists():
        await asyncio.sleep(0.02)
    await sandbox.close()
    await sandbox.close()
    assert work.cancelled()
    assert not sandbox.workspace.parent.exists()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run(["true"], deadline_s=20)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 200])
async def test_a_name_must_be_a_file_name(backend: LocalBackend, source: Path, name: str) -> None:
    with pytest.raises(SandboxError, match="no name"):
        await backend.create(SandboxSpec(name, source, "none"))


async def test_a_name_is_used_once_at_a_time(backend: LocalBackend, source: Path) -> None:
    sandbox = await backend.create(SandboxSpec("same", source, "none"))
    with pytest.raises(SandboxError, match="already"):
        await backend.create(SandboxSpec("same", source, "none"))
    await sandbox.close()
    await (await backend.create(SandboxSpec("same", source, "none"))).close()


async def test_a_source_that_is_missing_leaves_nothing_behind(
    backend: LocalBackend, tmp_path: Path
) -> None:
    with pytest.raises(SandboxError, match="cannot make the workspace"):
        await backend.create(SandboxSpec("none", tmp_path / "missing", "none"))
    assert not (tmp_path / "root" / "open").exists()


async def test_many_sandboxes_at_once_keep_apart(backend: LocalBackend, source: Path) -> None:
    async def one(number: int) -> bytes:
        sandbox = await backend.create(SandboxSpec(f"many-{number}", source, "none"))
        try:
            script = f"echo {number} > mine; sleep 0.05; cat mine"
            return (await sandbox.run(["bash", "-c", script], deadline_s=60)).stdout
        finally:
            await sandbox.close()

    outputs = await asyncio.gather(*(one(number) for number in range(8)))
    assert outputs == [b"%d\n" % number for number in range(8)]


def test_the_guarantees_say_what_holds(backend: LocalBackend) -> None:
    guarantees = backend.guarantees()
    assert guarantees["isolation"] in ("bubblewrap", "unshare")
    assert "NOT KEPT" not in guarantees.values()


def test_an_isolation_that_is_not_installed_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these_programs(tmp_path / "bin", monkeypatch)
    with pytest.raises(SandboxError, match="apt install bubblewrap"):
        LocalBackend(local_settings(isolation="bubblewrap"), tmp_path / "root")
    assert not (tmp_path / "root").exists()
    assert not list(Path("/dev/shm").glob(f"agentrl-{os.getpid()}-*/*"))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match=str(tmp_path / "file" / "root")):
        LocalBackend(local_settings(), tmp_path / "file" / "root")


async def test_without_bubblewrap_unshare_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these_programs(tmp_path / "bin", monkeypatch, "unshare")
    backend = LocalBackend(local_settings(isolation="auto"), tmp_path / "root")
    assert backend.guarantees()["isolation"] == "unshare"
    await backend.close()


async def test_with_neither_it_works_and_warns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    source: Path,
) -> None:
    only_these_programs(tmp_path / "bin", monkeypatch)
    backend = LocalBackend(local_settings(isolation="auto"), tmp_path / "root")
    monkeypatch.undo()
    assert "NOT isolated" in capfd.readouterr().err
    guarantees = backend.guarantees()
    assert guarantees["no network but the gateway"] == "NOT KEPT"
    tool = tmp_path / "tool.py"
    tool.write_text("print('tool')\n")
    spec = SandboxSpec("plain", source, "none", mounts={"/opt/tool/tool.py": tool})
    sandbox = await backend.create(spec)
    result = await sandbox.run(["python", "-I", "-S", "/opt/tool/tool.py"], deadline_s=20)
    assert result.stdout == b"tool\n"
    await backend.close()
    assert not (tmp_path / "root").exists()


async def test_without_namespaces_a_daemon_is_found_by_its_tag(
    tmp_path: Path, source: Path
) -> None:
    backend = LocalBackend(local_settings(isolation="none"), tmp_path / "root")
    sandbox = await backend.create(SandboxSpec("plain", source, "none"))
    script = "(setsid bash -c 'while :; do date > alive; sleep 0.01; done' >/dev/null 2>&1 &); "
    result = await sandbox.run(
        ["bash", "-c", script + "while ! test -e alive; do sleep 0.01; done"], deadline_s=20
    )
    assert result.exit_code == 0
    (sandbox.workspace / "alive").unlink()
    await asyncio.sleep(0.1)
    assert not (sandbox.workspace / "alive").exists()
    timed = await sandbox.run(["bash", "-c", "setsid sleep 300 & sleep 300"], deadline_s=0.3)
    assert timed.timed_out
    await backend.close()


async def test_without_namespaces_the_gateway_is_reached_at_its_own_address(
    tmp_path: Path, source: Path, gateway: ScriptedGateway
) -> None:
    backend = LocalBackend(local_settings(isolation="none"), tmp_path / "root")
    sandbox = await backend.create(with_gateway(gateway, source))
    assert sandbox.gateway_url == gateway.url
    result = await sandbox.run([sys.executable, "-c", ASK, gateway.url], deadline_s=20)
    assert b"message_stop" in result.stdout
    await backend.close()


async def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "root" / "open" / "old"
    left.mkdir(parents=True)
    backend = LocalBackend(local_settings(isolation="none"), tmp_path / "root")
    assert not left.exists()
    await backend.close()


async def test_an_image_is_refused(backend: LocalBackend, source: Path) -> None:
    for spec in (
        SandboxSpec("image", source, "none", image="python:3.11"),
        SandboxSpec("image", None, "none"),
    ):
        with pytest.raises(SandboxError, match="choose docker, podman, apptainer or e2b"):
            await backend.create(spec)

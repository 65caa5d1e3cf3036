"""Apptainer: its command lines, images and environment; its network and leftovers by a stand-in.

``test_conformance`` runs the contract on the stand-in. The real program was run by none of them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from runners.sandboxes.contract import EgressAttempt, SandboxError, SandboxSpec
from runners.sandboxes.remote import apptainer_program as program
from runners.sandboxes.remote.apptainer import ApptainerBackend
from runners.sandboxes.remote.id_ranges import has_range
from tests.fakes.apptainer.installed import apptainer_program, can_stand_in, list_instances
from tests.fakes.sandbox_backends import apptainer_settings

START = (
    "apptainer instance start --fakeroot --containall --no-home --no-mount tmp,home,cwd,bind-paths "
    "--net --network none --overlay /o{limits} /x.sif box"
)


def test_an_instance_is_contained_and_has_the_limits_that_are_set(tmp_path: Path) -> None:
    limits = " --memory 512M --memory-swap 512M --pids-limit 64 --cpus 1"
    argv = program.start_argv(apptainer_settings(tmp_path), "box", "/x.sif", Path("/o"))
    assert argv == START.format(limits=limits).split()
    none = apptainer_settings(tmp_path, memory_mb=None, processes=None, cpus=None)
    argv = program.start_argv(none, "box", "/x.sif", Path("/o"))
    assert argv == START.format(limits="").split()


def test_a_script_starts_at_the_root_without_the_drivers_environment() -> None:
    argv = ["apptainer", "exec", "--cleanenv", "--pwd", "/", "instance://box", "sh", "-c"]
    assert program.exec_argv("box", "a 'b'") == [*argv, "a 'b'"]


def test_the_sites_variables_do_not_change_what_apptainer_does() -> None:
    environ = {
        **{"APPTAINER_BIND": "/scratch", "SINGULARITY_BINDPATH": "/data", "PATH": "/bin"},
        **{"APPTAINERENV_X": "1", "APPTAINER_CACHEDIR": "/c", "XDG_RUNTIME_DIR": "/run/user/1"},
    }
    kept = program.program_environment(environ)
    assert sorted(kept) == ["APPTAINER_CACHEDIR", "PATH", "XDG_RUNTIME_DIR"]


@pytest.mark.parametrize(
    ("image", "file"),
    [
        ("python:3.11", "python_3.11.sif"),
        ("swebench/sweb.eval.x86_64.a_1776_b-1", "sweb.eval.x86_64.a_1776_b-1_latest.sif"),
        ("host:5000/a/b:v1", "b_v1.sif"),
        ("a/b@sha256:00", "b_latest.sif"),
    ],
)
def test_a_tasks_image_is_the_file_that_apptainer_pull_makes(
    tmp_path: Path, image: str, file: str
) -> None:
    config = apptainer_settings(tmp_path, images=str(tmp_path))
    with pytest.raises(SandboxError, match=rf"has no {file}: `apptainer pull --dir .*{image}`"):
        program.find_image(config, image)
    (tmp_path / file).touch()
    assert program.find_image(config, image) == str(tmp_path / file)
    assert program.find_image(apptainer_settings(tmp_path), image) == f"docker://{image}"
    assert program.find_image(config, None) == "docker://python:3.11"
    assert program.find_image(config, "/images/x.sif") == "/images/x.sif"
    here = apptainer_settings(tmp_path, image="x.sif")
    assert program.find_image(here, None) == str(Path("x.sif").absolute())


@pytest.mark.parametrize(
    ("line", "enough"),
    [
        ("me:100000:65536", True),
        ("1000:100000:131072", True),
        ("me:100000:1000", False),
        ("other:100000:65536", False),
        ("me", False),
    ],
)
def test_a_user_needs_a_range_of_ids(line: str, enough: bool) -> None:
    assert has_range(["# comment", line], ("me", "1000")) is enough


REACH = """
import socket, sys, urllib.request
at = sys.argv[1].removeprefix("http://").split(":")
there = socket.create_connection((at[0], int(at[1])), 10)
there.sendall(b"hello")
print(there.recv(5).decode())
for host in (("127.0.0.1", int(sys.argv[2])), ("1.1.1.1", 80)):
    print(socket.socket().connect_ex(host))
try:
    urllib.request.urlopen("http://pypi.example/simple/", timeout=20)
except urllib.error.HTTPError as error:
    print(error.code)
"""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))
    writer.close()


def skip_without_stand_in() -> None:
    if not can_stand_in():
        pytest.skip("this machine cannot stand in for Apptainer")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.mark.integration
async def test_an_agent_reaches_the_gateway_and_nothing_beyond(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_stand_in()
    (tmp_path / "site").mkdir()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with apptainer_program(tmp_path / "bin", image="chmod 755 /tmp"):
        monkeypatch.setenv("APPTAINER_BIND", f"{tmp_path}/site:/mnt")
        monkeypatch.setenv("OF_HOST", "secret")
        (tmp_path / "site" / "secret").touch()
        backend = ApptainerBackend(apptainer_settings(tmp_path / "w"), tmp_path / "driver")
        url = f"http://127.0.0.1:{port}"
        handles = len(list(Path("/proc/self/fd").iterdir()))
        spec = SandboxSpec("one", source, "gateway", gateway_url=url)
        sandbox = await backend.create(spec)
        inside = sandbox.gateway_url
        assert inside is not None
        command = ["python", "-c", REACH, inside, str(port)]
        reached = await sandbox.run(command, deadline_s=60)
        seen = await sandbox.run(
            ["sh", "-c", "touch /tmp/touched; ls /tmp /mnt; env"], deadline_s=60
        )
        with pytest.raises(SandboxError, match="by http://HOST:PORT"):
            await backend.create(SandboxSpec("two", source, "gateway", gateway_url="https://g"))
        assert [each.rpartition("-")[2] for each in list_instances()] == ["one"]
        await sandbox.close()
        assert not list((tmp_path / "w").glob("*/*"))
        assert len(list(Path("/proc/self/fd").iterdir())) == handles
        await backend.close()
        monkeypatch.delenv("APPTAINER_BIND")
    server.close()
    assert inside == "http://127.0.0.1:8080"
    assert reached.stdout.split() == [b"hello", b"111", b"101", b"403"], reached
    assert sandbox.egress_attempts() == (EgressAttempt("pypi.example", 80, False, 1),)
    assert b"secret" not in seen.stdout
    assert b"touched\n" in seen.stdout, seen


@pytest.mark.integration
async def test_what_a_killed_driver_left_is_ended_by_the_next(tmp_path: Path, source: Path) -> None:
    skip_without_stand_in()
    written = tmp_path / "w"
    with apptainer_program(tmp_path / "bin"):
        settings = apptainer_settings(written)
        killed = ApptainerBackend(settings, tmp_path / "driver")
        names = ("one", "two", "three")
        await asyncio.gather(*(killed.create(SandboxSpec(each, source, "none")) for each in names))
        assert len((tmp_path / "bin/pulls").read_text().split()) == 1
        other = ApptainerBackend(settings, tmp_path / "other")
        kept = await other.create(SandboxSpec("one", source, "none"))
        following = ApptainerBackend(settings, tmp_path / "driver")
        await following.reap({"one": {}})
        assert len(list_instances()) == 3
        # One that died by itself is not listed; its directory is there.
        (died,) = (each for each in list_instances() if each.endswith("-three"))
        subprocess.run(["apptainer", "instance", "stop", "--force", died], check=True)
        await following.close()
        assert len(list(written.iterdir())) == 1
        assert (await kept.run(["echo", "alive"], deadline_s=60)).stdout == b"alive\n"
        await other.close()
        assert not list_instances()
    assert not list(written.iterdir())


@pytest.mark.integration
async def test_an_image_that_does_not_start_leaves_nothing_and_its_reason(
    tmp_path: Path, source: Path
) -> None:
    skip_without_stand_in()
    with apptainer_program(tmp_path / "bin"):
        settings = apptainer_settings(tmp_path / "w", image="/no/such.sif")
        backend = ApptainerBackend(settings, tmp_path / "driver")
        with pytest.raises(SandboxError, match=r"could not open image /no/such.sif"):
            await backend.create(SandboxSpec("one", source, "none"))
        assert not list((tmp_path / "w").glob("*/*"))
        await backend.close()


@pytest.mark.integration
def test_what_ids_of_its_own_have_written_is_removed_by_apptainer(tmp_path: Path) -> None:
    skip_without_stand_in()
    (tmp_path / "overlay/upper/deep").mkdir(parents=True)
    closed = tmp_path / "overlay" / "work" / "index"  # overlayfs makes such directories
    closed.mkdir(parents=True)
    closed.chmod(0)
    (tmp_path / "kept").touch()
    with apptainer_program(tmp_path / "bin"):
        argv = program.remove_argv("docker://python:3.11", tmp_path / "overlay")
        subprocess.run(argv, check=True, env=program.program_environment(os.environ))
    assert not list((tmp_path / "overlay").iterdir())
    assert (tmp_path / "kept").exists()

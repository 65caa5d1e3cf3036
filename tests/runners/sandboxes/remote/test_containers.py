"""The command lines of the docker and podman backends.

``test_conformance`` shows that they work: with a stand-in for the ``docker`` program, and with
engines where there are some.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from runners.sandboxes.contract import EgressAttempt, SandboxError, SandboxSpec
from runners.sandboxes.remote import container_program as program
from runners.sandboxes.remote import containers
from runners.sandboxes.remote.program_machine import run_program
from tests.fakes.docker.installed import can_stand_in, docker_program
from tests.fakes.podman import IMAGE, find_obstacle, has_netavark, podman, podman_engine
from tests.fakes.sandbox_backends import docker_settings, podman_settings

TAG = "0123456789abcdef"
PYTHON = ("python", "-c")
FETCH = "import urllib.request; urllib.request.urlopen('http://pypi.example/simple/', timeout=20)"
CONNECT = """
import socket, sys, urllib.parse
there = urllib.parse.urlsplit(sys.argv[1])
socket.create_connection((there.hostname, there.port), 10)
codes = [socket.socket().connect_ex(at) for at in ((there.hostname, 1), ("1.1.1.1", 80))]
print("reached", *codes)
"""
GATEWAY = "{{range .Subnets}}{{.Gateway}}{{end}}"
RUN = (
    "docker run --detach --init --name agentrl-0123456789ab-train-1-a0 "
    "--label agentrl_run=0123456789abcdef "
    "--network {network} --user 0 --workdir / --memory 512m --memory-swap 512m "
    "--pids-limit 64 --cpus 1 --security-opt no-new-privileges --cap-drop ALL "
    "--cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add FOWNER --cap-add KILL --cap-add SETGID "
    "--cap-add SETPCAP --cap-add SETUID --entrypoint sleep {image} infinity"
)


def test_a_grader_gets_no_network_and_the_tasks_image() -> None:
    spec = SandboxSpec("train-1-a0", None, "none", image="swe/bench:1", session_key="secret")
    argv = program.run_argv(docker_settings(), spec, TAG, "swe/bench:1")
    assert argv == RUN.format(network="none", image="swe/bench:1").split()


def test_an_agent_is_on_the_configured_network() -> None:
    spec = SandboxSpec("train-1-a0", None, "gateway", gateway_url="http://172.17.0.1:8080")
    argv = program.run_argv(docker_settings(), spec, TAG, "python:3.11")
    assert argv == RUN.format(network="bridge", image="python:3.11").split()


def test_scripts_run_as_root_and_read_input_only_if_there_is_some() -> None:
    assert program.exec_argv("docker", "box", "a 'b'") == [
        *("docker", "exec", "--user", "0", "box", "sh", "-c", "a 'b'")
    ]
    argv = program.exec_argv("docker", "box", "cat", stdin=True)
    assert argv[:3] == ["docker", "exec", "--interactive"]


def test_only_the_runs_own_containers_are_listed_and_removed() -> None:
    listing = program.list_argv("docker", TAG)
    assert listing[:5] == ["docker", "ps", "--all", "--filter", f"label=agentrl_run={TAG}"]
    assert listing[-1] == "{{.Names}}"
    argv = program.remove_argv("docker", "box")
    assert argv == ["docker", "rm", "--force", "--volumes", "box"]


def test_podman_passes_no_proxy_of_the_host_on_and_removes_at_once() -> None:
    spec = SandboxSpec("train-1-a0", None, "none")
    argv = program.run_argv(podman_settings(), spec, TAG, "python:3.11")
    common = RUN.format(network="none", image="python:3.11").split()
    assert argv == ["podman", *common[1:4], "--http-proxy=false", *common[4:]]
    assert program.remove_argv("podman", "box")[:5] == [*("podman", "rm", "--force", "--time", "0")]


@pytest.mark.parametrize(
    ("image", "qualified"),
    [
        ("python:3.11", "docker.io/library/python:3.11"),
        ("swebench/sweb.eval:latest", "docker.io/swebench/sweb.eval:latest"),
        *((name, name) for name in ("ghcr.io/a/b:1", "localhost/a", "host:5000/a:1")),
    ],
)
def test_an_image_without_a_registry_is_of_docker_hub(image: str, qualified: str) -> None:
    assert program.qualify_image(image) == qualified


def test_the_real_program_knows_every_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    spec = SandboxSpec("train-1-a0", None, "none")
    for argv in (
        program.run_argv(docker_settings(), spec, TAG, "python:3.11"),
        program.exec_argv("docker", "box", "true", stdin=True),
        program.list_argv("docker", TAG),
        program.remove_argv("docker", "box"),
    ):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode
        assert "daemon" in done.stderr, argv
        assert "flag" not in done.stderr, argv


@pytest.mark.integration
async def test_a_task_works_in_its_images_own_directory(tmp_path: Path) -> None:
    if not can_stand_in():
        pytest.skip("this machine cannot stand in for a docker engine")
    (source := tmp_path / "source").mkdir()
    (source / "a.txt").write_text("pinned\n")
    image = "mkdir /testbed && cd /testbed && git init -q . && echo old > gone.txt && git add . && "
    with docker_program(tmp_path / "bin", image=f"{image} echo built > built.o"):
        backend = containers.ContainerBackend(docker_settings(), tmp_path / "driver")
        spec = SandboxSpec("one", source, "none", image="swe:1", workdir="/testbed")
        sandbox = await backend.create(spec)
        result = await sandbox.run(["sh", "-c", "pwd; cat *; touch built.o a.txt"], deadline_s=30)
        facts = next((tmp_path / "bin/containers").glob("*/facts.json")).read_text()
        await backend.close()
    assert (result.exit_code, result.stdout) == (0, b"/testbed\npinned\nbuilt\n"), result
    assert json.loads(facts)["image"] == "swe:1"


async def test_the_error_contains_what_the_program_printed() -> None:
    argv = ["sh", "-c", "echo no such image >&2; exit 125"]
    with pytest.raises(SandboxError, match="sh -c ended with 125 and printed: no such image"):
        await run_program(argv, deadline_s=30)


async def test_the_error_for_a_missing_program_says_how_to_fix_it() -> None:
    with pytest.raises(SandboxError, match=r"cannot run no-docker: .*; install no-docker"):
        await run_program(["no-docker", "run"], deadline_s=30)


async def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(SandboxError, match="sleep 300 took longer than"):
        await run_program(["sleep", "300"], deadline_s=0.1)


async def test_a_program_that_does_not_end_is_killed_with_its_children() -> None:
    argv = ["sh", "-c", "sleep 300 & wait"]  # the child holds the pipes
    async with asyncio.timeout(30):
        with pytest.raises(SandboxError, match="sh -c took longer than"):
            await run_program(argv, deadline_s=0.1)


async def test_input_and_output_are_streamed(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(range(256)) * 4096)
    with there.open("rb") as source, back.open("wb") as target:
        await run_program(["cat"], stdin=source, stdout=target, deadline_s=30)
    assert back.read_bytes() == there.read_bytes()
    assert await run_program(["cat"], stdin=b"some", deadline_s=30) == b"some"


@pytest.mark.integration
async def test_an_agent_of_podman_reaches_the_gateway_and_nothing_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (obstacle := find_obstacle()) is not None or not has_netavark():
        pytest.skip(obstacle or "podman's netavark is not installed")
    (source := tmp_path / "source").mkdir()
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy.example")
    with podman_engine():
        podman("network", "create", "--internal", "agents")
        address = podman("network", "inspect", "--format", GATEWAY, "agents").strip()
        # podman gives this machine the address while a container is on the network.
        podman("run", "--detach", "--init", "--network", "agents", IMAGE, "sleep", "infinity")
        settings = podman_settings(network="agents", egress="none")
        backend = containers.ContainerBackend(settings, tmp_path / "driver")
        with socket.create_server((address, 0)) as gateway:
            url = f"http://{address}:{gateway.getsockname()[1]}"
            spec = SandboxSpec("one", source, "gateway", gateway_url=url)
            sandbox = await backend.create(spec)
            reached = await sandbox.run([*PYTHON, CONNECT, url], deadline_s=60)
            fetched = await sandbox.run([*PYTHON, FETCH], deadline_s=60)
            # An agent has the proxy's own variables; a grader would have the host's.
            grader = await backend.create(SandboxSpec("two", source, "none"))
            shown = await grader.run(["env"], deadline_s=60)
        await backend.close()
        podman("rm", "--all", "--force", "--time", "0")
        podman("network", "rm", "agents")
    assert reached.stdout == b"reached 111 101\n", reached
    assert b"403" in fetched.stderr
    assert sandbox.egress_attempts() == (EgressAttempt("pypi.example", 80, False, 1),)
    assert b"secret" not in shown.stdout


@pytest.mark.integration
async def test_a_container_of_podman_keeps_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(obstacle)
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    with podman_engine():
        settings = podman_settings(memory_mb=256, processes=40)
        backend = containers.ContainerBackend(settings, tmp_path / "driver")
        sandbox = await backend.create(SandboxSpec("one", here, "none"))
        filled = await sandbox.run([*PYTHON, "len(b'x' * (400 << 20)) and print(1)"], deadline_s=60)
        files = "cat /sys/fs/cgroup/pids/pids.max || cat /sys/fs/cgroup/pids.max"
        processes = await sandbox.run(["sh", "-c", files], deadline_s=60)
        assert (await sandbox.run(["echo", "alive"], deadline_s=60)).stdout == b"alive\n"
        await backend.close()
    assert filled.exit_code == -9, filled
    assert not list(here.iterdir())
    assert processes.stdout == b"40\n", processes


FILL = """
import os, sys, time
first = os.getpid()
while os.getpid() == first or {every}:
    try:
        if os.fork() == 0 and not {every}:
            time.sleep(300)
    except OSError:
        if not {every}:
            sys.exit(3)
        time.sleep(0.02)
"""
"""Takes all processes: each of them forks on, or the first one ends and leaves the others."""


@pytest.mark.integration
async def test_a_command_that_takes_all_processes_ends_as_any_other(tmp_path: Path) -> None:
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(obstacle)
    (source := tmp_path / "source").mkdir()
    with podman_engine():
        settings = podman_settings(processes=40)
        backend = containers.ContainerBackend(settings, tmp_path / "driver")
        sandbox = await backend.create(SandboxSpec("one", source, "none"))
        left = await sandbox.run([*PYTHON, FILL.format(every=False)], deadline_s=60)
        bomb = await sandbox.run([*PYTHON, FILL.format(every=True)], deadline_s=2)
        alive = await sandbox.run(["echo", "alive"], deadline_s=60)
        await backend.close()
    assert left.exit_code == 3, left
    assert bomb.timed_out, bomb
    assert alive.stdout == b"alive\n"


@pytest.mark.integration
async def test_what_a_killed_driver_left_with_podman_is_ended_by_the_next(tmp_path: Path) -> None:
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(obstacle)
    with podman_engine():
        backend = containers.ContainerBackend(podman_settings(), tmp_path / "driver")
        for name in ("one", "two"):
            await backend.create(SandboxSpec(name, tmp_path / "driver", "none"))
        other = containers.ContainerBackend(podman_settings(), tmp_path / "other")
        kept = await other.create(SandboxSpec("one", tmp_path / "driver", "none"))
        following = containers.ContainerBackend(podman_settings(), tmp_path / "driver")
        await following.reap({"one": {}})
        names = podman("ps", "--all", "--format", "{{.Names}}")
        assert (names.count("-one"), names.count("-two")) == (1, 1)
        assert (await kept.run(["echo", "alive"], deadline_s=60)).stdout == b"alive\n"
        await following.close()
        await other.close()

"""The command lines of the docker backend.

``test_conformance`` shows that they work: with a stand-in for the ``docker`` program, and with an
engine where there is one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote import docker
from tests.fakes.docker.installed import can_stand_in, docker_program
from tests.fakes.sandbox_backends import docker_settings

TAG = "0123456789abcdef"
RUN = (
    "docker run --detach --init --name agentrl-0123456789ab-train-1-a0 "
    "--label agentrl_run=0123456789abcdef --label agentrl_name=train-1-a0 "
    "--network {network} --user 0 --workdir / --memory 512m --memory-swap 512m "
    "--pids-limit 64 --cpus 1 --security-opt no-new-privileges --cap-drop ALL "
    "--cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add FOWNER --cap-add KILL --cap-add SETGID "
    "--cap-add SETPCAP --cap-add SETUID --entrypoint sleep {image} infinity"
)


def test_a_grader_gets_no_network_and_the_tasks_image() -> None:
    spec = SandboxSpec("train-1-a0", None, "none", image="swe/bench:1", session_key="secret")
    argv = docker.run_argv(docker_settings(), spec, TAG)
    assert argv == RUN.format(network="none", image="swe/bench:1").split()


def test_an_agent_is_on_the_configured_network() -> None:
    spec = SandboxSpec("train-1-a0", None, "gateway", gateway_url="http://172.17.0.1:8080")
    argv = docker.run_argv(docker_settings(), spec, TAG)
    assert argv == RUN.format(network="bridge", image="python:3.11").split()


def test_scripts_run_as_root_and_read_input_only_if_there_is_some() -> None:
    assert docker.exec_argv("box", "a 'b'") == [
        *("docker", "exec", "--user", "0", "box", "sh", "-c", "a 'b'")
    ]
    assert docker.exec_argv("box", "cat", stdin=True)[:3] == ["docker", "exec", "--interactive"]


def test_only_the_runs_own_containers_are_listed_and_removed() -> None:
    listing = docker.list_argv(TAG)
    assert listing[:5] == ["docker", "ps", "--all", "--filter", f"label=agentrl_run={TAG}"]
    assert listing[-1] == '{{.ID}} {{.Label "agentrl_name"}}'
    assert docker.remove_argv("box") == ["docker", "rm", "--force", "--volumes", "box"]


def test_the_real_program_knows_every_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    spec = SandboxSpec("train-1-a0", None, "none")
    for argv in (
        docker.run_argv(docker_settings(), spec, TAG),
        docker.exec_argv("box", "true", stdin=True),
        docker.list_argv(TAG),
        docker.remove_argv("box"),
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
        backend = docker.DockerBackend(docker_settings(), tmp_path / "driver")
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
        await docker.run_docker(argv, deadline_s=30)


async def test_the_error_for_a_missing_program_says_how_to_fix_it() -> None:
    with pytest.raises(SandboxError, match=r"cannot run no-docker: .*; install docker"):
        await docker.run_docker(["no-docker", "run"], deadline_s=30)


async def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(SandboxError, match="sleep 300 took longer than"):
        await docker.run_docker(["sleep", "300"], deadline_s=0.1)


async def test_input_and_output_are_streamed(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(range(256)) * 4096)
    with there.open("rb") as source, back.open("wb") as target:
        await docker.run_docker(["cat"], stdin=source, stdout=target, deadline_s=30)
    assert back.read_bytes() == there.read_bytes()
    assert await docker.run_docker(["cat"], stdin=b"some", deadline_s=30) == b"some"

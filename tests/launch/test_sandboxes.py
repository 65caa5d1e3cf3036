"""Pre-flight of remote sandboxes."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from conf.compose import compose
from conf.sections.sandbox import ApptainerSandboxConfig, E2bSandboxConfig
from launch.local import plan_local_run
from launch.preflight import find_problems
from launch.sandbox_preflight import check_apptainer, check_containers, check_e2b

PUBLIC = ["gateway.public_url=http://g.example:8080", "gateway.port=8080"]


def fatal(sandbox: str, run_dir: Path) -> list[str]:
    found = find_problems(compose([f"sandbox={sandbox}", *PUBLIC]), run_dir, port_grace_s=0)
    return [
        problem.message
        for problem in found
        if problem.fatal and problem.message.startswith("sandbox=")
    ]


def own_server(url: str, **changes: object) -> E2bSandboxConfig:
    values = {
        **{"kind": "e2b", "template": "base", "image_key": None, "size": None, "boots": 64},
        **{"lifetime_s": 3600, "attempts": 3, "api_url": url, "sandbox_url": url},
        **{"egress": "none", "egress_hosts": (), **changes},
    }
    return E2bSandboxConfig.model_validate(values)


def test_e2b_needs_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    (message,) = fatal("e2b", tmp_path)
    assert message.endswith("set E2B_API_KEY in the environment")
    monkeypatch.setenv("E2B_API_KEY", "e2b_secret")
    assert fatal("e2b", tmp_path) == []


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (200, "[]", None),
        (200, "<html>", "not a list of sandboxes"),
        (302, "", "HTTP 302"),
        (401, "", "refuses the key in E2B_API_KEY"),
        (404, "", "does not speak E2B's API"),
        (500, "", "HTTP 500"),
    ],
)
def test_a_server_by_address_is_asked_for_its_sandboxes(
    monkeypatch: pytest.MonkeyPatch, status: int, body: str, wanted: str | None
) -> None:
    monkeypatch.setenv("E2B_API_KEY", "key")
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["X-API-Key"]))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        found = list(check_e2b(own_server(url)))
        server.shutdown()
        thread.join()
    assert asked == [("/v2/sandboxes?metadata=agentrl_run%3Dcheck", "key")]
    assert [fatal for fatal, _ in found] == [True] * bool(wanted)
    assert all(wanted in message for _, message in found if wanted)


def test_a_server_that_does_not_run_is_a_problem_and_what_is_not_encrypted_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("E2B_API_KEY", "key")
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    ((fatal, message),) = check_e2b(own_server(url))
    assert fatal
    assert "is the server running?" in message
    (fatal, message), _ = check_e2b(own_server(url, sandbox_url="http://8.8.8.8"))
    assert not fatal
    assert "sandbox_url=http://8.8.8.8 is not encrypted" in message
    (fatal, message), _ = check_e2b(own_server(url, sandbox_url=None))
    assert not fatal
    assert "without sandbox.sandbox_url" in message


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("echo Cannot connect >&2; exit 1", "no engine answers (Cannot connect)"),
        ("echo Server: 28", None),
        (None, "`docker` is missing"),
    ],
)
def test_docker_needs_an_engine_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, wanted: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "docker").chmod(0o755)
    found = fatal("docker", tmp_path)
    assert [wanted in message for message in found if wanted] == [True] * bool(wanted)
    assert len(found) == bool(wanted)


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ("false v1 cpu memory pids", []),
        ("true v2 cpuset cpu io memory pids", []),
        ("true v2 memory pids", [(True, "no cpu: delegate")]),
        ("true v1", [(False, "on control groups v1: use v2")]),
        (None, [(True, "no engine answers (cannot clone)")]),
    ],
)
def test_podman_without_root_needs_control_groups_that_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: str | None,
    wanted: list[tuple[bool, str]],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    prints = f"echo {facts}" if facts else "echo cannot clone >&2; exit 125"
    (tmp_path / "podman").write_text(f"#!/bin/sh\n{prints}\n")
    (tmp_path / "podman").chmod(0o755)
    found = list(check_containers("podman"))
    assert [fatal for fatal, _ in found] == [fatal for fatal, _ in wanted]
    assert all(text in each for (_, each), (_, text) in zip(found, wanted, strict=True))


def test_sandboxes_at_e2b_need_no_local_memory(tmp_path: Path) -> None:
    processes = plan_local_run(compose(["sandbox=e2b", *PUBLIC]), tmp_path).processes
    assert "sandbox" not in {process.name for process in processes}


def apptainer(*overrides: str) -> ApptainerSandboxConfig:
    sandbox = compose(["sandbox=apptainer", *overrides]).sandbox
    assert isinstance(sandbox, ApptainerSandboxConfig)
    return sandbox


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory of PATH, with the programs that Apptainer needs."""
    (tmp_path / "bin").mkdir()
    for name in ("apptainer", "nsenter", "newuidmap"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin" / "stat").symlink_to("/usr/bin/stat")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def test_apptainer_needs_its_programs_and_has_what_it_needs(programs: Path, tmp_path: Path) -> None:
    assert fatal("apptainer", tmp_path) == []
    for name in ("apptainer", "nsenter", "newuidmap"):
        (programs / name).rename(programs / f"{name}-away")
        found = list(check_apptainer(apptainer(), uid=1000))
        (programs / f"{name}-away").rename(programs / name)
        kind = {is_fatal for is_fatal, text in found if f"`{name}` is missing" in text}
        assert kind == {name != "newuidmap"}


@pytest.mark.parametrize("version", [1, 2])
def test_apptainer_sets_limits_without_root_in_a_systemd_session_only(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    config = apptainer("sandbox.memory_mb=512", "sandbox.cpus=1")
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    ((is_fatal, text),) = check_apptainer(config, uid=1000, cgroups=tmp_path)
    assert is_fatal
    missing = "control groups v2, DBUS_SESSION" if version == 1 else ": DBUS_SESSION_BUS_ADDRESS."
    assert missing in text
    assert text.endswith("Set sandbox.memory_mb=null sandbox.cpus=null, and limit the job instead")
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1/bus")
    found = list(check_apptainer(config, uid=1000, cgroups=tmp_path))
    assert len(found) == (version == 1)
    ((is_fatal, text),) = check_apptainer(apptainer(), uid=1000, cgroups=tmp_path)
    assert not is_fatal
    assert "may take all that this job has" in text


def test_apptainer_needs_its_directories_and_images(programs: Path, tmp_path: Path) -> None:
    keys = {"images": "is no directory", "image": "does not exist", "directory": "No such file"}
    for key, wanted in keys.items():
        ((is_fatal, text),) = check_apptainer(apptainer(f"sandbox.{key}={tmp_path}/none"), uid=0)
        assert is_fatal
        assert text.startswith(f"sandbox.{key}=")
        assert wanted in text


def test_apptainer_writes_no_overlay_to_a_file_system_of_a_cluster(
    programs: Path, tmp_path: Path
) -> None:
    (programs / "stat").unlink()
    (programs / "stat").write_text("#!/bin/sh\necho lustre\n")
    (programs / "stat").chmod(0o755)
    ((is_fatal, text),) = check_apptainer(apptainer(f"sandbox.directory={tmp_path}"), uid=0)
    assert is_fatal
    assert f"{tmp_path}, which is lustre" in text

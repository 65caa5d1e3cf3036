"""Pre-flight of remote sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose
from launch.local import plan_local_run
from launch.preflight import find_problems

PUBLIC = ["gateway.public_url=http://g.example:8080", "gateway.port=8080"]


def fatal(sandbox: str, run_dir: Path) -> list[str]:
    found = find_problems(compose([f"sandbox={sandbox}", *PUBLIC]), run_dir, port_grace_s=0)
    return [
        problem.message
        for problem in found
        if problem.fatal and problem.message.startswith("sandbox=")
    ]


def test_e2b_needs_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    (message,) = fatal("e2b", tmp_path)
    assert message.endswith("set E2B_API_KEY in the environment")
    monkeypatch.setenv("E2B_API_KEY", "e2b_secret")
    assert fatal("e2b", tmp_path) == []


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
    found = find_problems(compose(["sandbox=podman", *PUBLIC]), tmp_path, port_grace_s=0)
    messages = [each for each in found if each.message.startswith("sandbox=")]
    assert [each.fatal for each in messages] == [fatal for fatal, _ in wanted]
    assert all(text in each.message for each, (_, text) in zip(messages, wanted, strict=True))


def test_sandboxes_at_e2b_need_no_local_memory(tmp_path: Path) -> None:
    processes = plan_local_run(compose(["sandbox=e2b", *PUBLIC]), tmp_path).processes
    assert "sandbox" not in {process.name for process in processes}

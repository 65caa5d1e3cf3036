"""Whatever an agent leaves in its workspace is its own outcome, on every isolation."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conf.compose import compose
from runners.records.outcome import OutcomeCode
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.tasks.contract import DEFAULT_LIMITS, CaptureLimits, Patch, Task, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches import capture_process
from runners.tasks.patches.patch import capture_apart, capture_patch
from runners.tasks.patches.workspace_diff import PatchError
from tests.fakes.hostile_programs import (
    FINISHED,
    HOSTILE,
    SMALL_LIMITS,
    HostileProgram,
    make_program,
)
from tests.fakes.hostile_run import run_programs
from tests.fakes.sandbox_backends import local_settings, skip_without
from tests.runners.tasks.example_repositories import FIX, make_task

pytestmark = pytest.mark.integration

SMALL = [f"rollout.capture.{key}={value}" for key, value in SMALL_LIMITS.items()]
LIMITS = CaptureLimits.of(compose(SMALL).rollout.capture)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(params=["bubblewrap", "unshare", "none"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    isolation: str = request.param
    skip_without(isolation)
    settings = local_settings(isolation=isolation, file_mb=16, memory_mb=1024, processes=64)
    backend = await asyncio.to_thread(LocalBackend, settings, tmp_path / "root")
    yield backend
    await backend.close()
    assert [path.name for path in tmp_path.iterdir()] == [], "nothing is left, and nothing aside"


async def run_program(
    backend: LocalBackend, task: Task, program: HostileProgram
) -> tuple[Patch, str]:
    """Run a program, capture its patch and grade it; return the patch and the verdict's kind."""
    sandbox = await backend.create(SandboxSpec("one", task.repo, "none"))
    try:
        await sandbox.run(["bash", "-c", program.script], deadline_s=10)
        patch = await capture_patch(task, sandbox, LIMITS, deadline_s=120)
    finally:
        await sandbox.close()
        assert not sandbox.workspace.parent.exists()
    verdict = await SandboxGrader(backend).grade(task, patch, name="grade", deadline_s=120)
    return patch, verdict.kind


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_workspace_ends_in_its_documented_outcome(
    backend: LocalBackend, task: Task, name: str, request: pytest.FixtureRequest
) -> None:
    program = HOSTILE[name]
    if not program.files_only and "none" in request.node.name:
        pytest.skip("it would reach processes of the host")
    patch, verdict = await run_program(backend, task, program)
    assert (patch.refused_as or FINISHED) == program.outcome, patch.refused
    assert verdict == VerdictKind.UNSOLVED


KILL_LAUNCHER = """
import os
def is_launcher(pid):
    words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    return words[1:3] == [b"-I", b"-S"] and b"/launcher." in words[3]
pid, parent = 1, os.getpid()
while not os.path.exists("/workspace") and is_launcher(parent):
    pid, parent = parent, int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
assert pid > 1 or os.path.exists("/workspace")
for number in (2, 9):
    os.kill(pid, number)
"""
"""Pid 1 with namespaces; without them the highest ancestor that runs its program."""


async def test_tests_whose_launcher_is_killed_are_unsolved(
    backend: LocalBackend, task: Task, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    copy_tree(task.repo, tmp_path / "w")
    (tmp_path / "w/calc/add.py").write_text(FIX + KILL_LAUNCHER)
    patch = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
    remove_tree(tmp_path / "w")
    verdict = await SandboxGrader(backend).grade(task, patch, name="grade", deadline_s=120)
    killed = "none" in request.node.name
    assert verdict.kind == (VerdictKind.UNSOLVED if killed else VerdictKind.SOLVED), verdict.reason
    assert ("killed" in verdict.reason) == killed


async def test_a_workspace_that_was_read_can_be_followed_by_any_other(
    task: Task, tmp_path: Path
) -> None:
    copy_tree(task.repo, tmp_path / "w")
    (tmp_path / "w/calc/add.py").write_text(FIX)
    one = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
    two = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
    assert one == two
    assert one.files == ("calc/add.py",)
    assert b"+    return a + b\n" in one.diff
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


async def test_a_server_that_was_killed_is_started_again(task: Task, tmp_path: Path) -> None:
    copy_tree(task.repo, tmp_path / "w")
    for _ in range(2):
        patch = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
        assert (patch.refused, patch.diff) == ("", b"")
        process = capture_process._server._process
        assert process is not None
        process.kill()
        process.wait()


async def test_failures_of_the_machine_are_not_the_agents(task: Task, tmp_path: Path) -> None:
    copy_tree(task.repo, tmp_path / "w")
    with pytest.raises(PatchError):
        await capture_apart(task, tmp_path / "gone", DEFAULT_LIMITS, deadline_s=60)
    lost = replace(task, repo=tmp_path / "no repository")
    with pytest.raises(PatchError):
        await capture_apart(lost, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
    with pytest.raises(PatchError, match="longer than"):
        await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=0.001)


async def test_reading_that_takes_too_much_cpu_time_is_refused(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns that git matches against each of many names; its limit is 1 s here."""
    copy_tree(task.repo, tmp_path / "w")
    pattern = "*a" * 30
    lines = "".join(f"{pattern}{number}*b\n" for number in range(2000))
    (tmp_path / "w/.gitignore").write_text(lines)
    for number in range(200):
        (tmp_path / "w" / f"{'a' * 200}{number}").touch()
    monkeypatch.setattr(capture_process, "CPU_S", 1)
    patch = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=100)
    assert patch.refused_as == OutcomeCode.POLICY_UNREADABLE_WORKSPACE
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize("name", [".gitignore", ".gitattributes", "calc/.gitignore", ".gitmodules"])
async def test_a_pipe_with_a_name_that_git_opens_holds_nothing_up(
    task: Task, tmp_path: Path, name: str
) -> None:
    copy_tree(task.repo, tmp_path / "w")
    (tmp_path / "w/calc/add.py").write_text(FIX)
    (tmp_path / "w" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "w" / name)
    patch = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
    assert (patch.refused, patch.files) == ("", ("calc/add.py",))


async def test_patterns_too_large_to_be_read_are_refused(task: Task, tmp_path: Path) -> None:
    copy_tree(task.repo, tmp_path / "w")
    with (tmp_path / "w/calc/.gitignore").open("w") as file:
        file.truncate(2 << 30)
    patch = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
    assert patch.refused_as == OutcomeCode.POLICY_OVERSIZED_PATCH
    assert "calc/.gitignore has 2048 MB" in patch.refused


def sleep_in_git(request: bytes) -> bytes:
    """Answer a request as a workspace does that git waits for."""
    subprocess.run(["sleep", "60"], check=False)
    return request


def work_in_git(request: bytes) -> bytes:
    """Answer a request as a workspace does on which git works for long, a call after the other."""
    work = "import time\nwhile time.process_time() < 0.4: pass"
    for _ in range(100):
        subprocess.run([sys.executable, "-I", "-S", "-c", work], check=False)
    return request


def answer_one(
    answer: Callable[[bytes], bytes], *, deadline_s: float, cpu_s: int
) -> tuple[bytes, float]:
    """Return what the server's side replies to a request, and the seconds that it took."""
    started = time.monotonic()
    reader, writer = os.pipe()
    content = os.memfd_create("request")
    if (pid := os.fork()) == 0:
        capture_process._answer(answer, deadline_s, cpu_s, content, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        reply = file.read()
    os.waitpid(pid, 0)
    os.close(content)
    return reply, time.monotonic() - started


def test_a_git_that_waits_for_ever_is_the_workspaces_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_process, "LOOK_S", 0.1)
    reply, took = answer_one(sleep_in_git, deadline_s=50, cpu_s=30)
    assert reply == capture_process.STUCK
    assert took < 30


def test_the_calls_of_git_share_one_budget_of_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_process, "LOOK_S", 0.1)
    reply, _ = answer_one(work_in_git, deadline_s=500, cpu_s=1)
    assert reply == capture_process.SPENT


def test_a_late_capture_is_the_workspaces_fault_if_it_worked_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_process, "SLOW_SHARE", 0.001)
    assert answer_one(work_in_git, deadline_s=3, cpu_s=100)[0] == capture_process.SPENT
    monkeypatch.setattr(capture_process, "SLOW_SHARE", 1)
    assert answer_one(work_in_git, deadline_s=1, cpu_s=100)[0] == capture_process.LATE


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
async def test_random_hostile_programs_end_in_documented_outcomes_and_leave_nothing(
    count: int, task: Task, tmp_path: Path
) -> None:
    skip_without("bubblewrap")
    settings = local_settings(file_mb=64, memory_mb=1024, processes=64, cpu_s=20)
    backend = await asyncio.to_thread(LocalBackend, settings, tmp_path / "root")
    try:
        ended = await run_programs(backend, task, [make_program(seed) for seed in range(count)])
    finally:
        await backend.close()
    documented = {str(code) for code in OutcomeCode if code.outcome_class in ("policy", "budget")}
    assert {name for name, number in ended.items() if number} <= documented
    assert ended.total() == count
    assert not any(tmp_path.iterdir())


async def test_a_module_beside_the_program_does_not_replace_a_library(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "beside").mkdir()
    (folder / "re.py").write_text("raise SystemExit('not the library')")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(capture_process, "_server", capture_process.CaptureServer())
    copy_tree(task.repo, tmp_path / "w")
    patch = await capture_apart(task, tmp_path / "w", DEFAULT_LIMITS, deadline_s=60)
    assert (patch.refused, patch.diff) == ("", b"")

"""Faults that are special to the driver's boundaries, each with the effect of the real failure."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from conf.errors import ExitCode
from conf.fault_table import Boundary, FaultKind
from runners.engines.client import UPDATE_ATTEMPTS
from runners.engines.contract import EngineError
from runners.gateway.refusal import GatewayError
from runners.records.store.store_error import StoreError
from runners.sandboxes.contract import SandboxError
from runners.services.faults.boundaries import wrap_backend, wrap_grader
from runners.services.faults.plan import Injection
from runners.services.faults.tools_inside import GARBAGE
from runners.tasks.contract import VerdictKind
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.runners.services.faults.run_parts import (
    RESULT,
    ROLLOUT,
    SESSION,
    RunParts,
    capture_patch,
    make_plan,
)

# --- the gateway's admin API -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["session", "finish"])
async def test_a_status_of_the_gateway_becomes_a_gateway_error(
    parts: RunParts, where: Boundary
) -> None:
    async with parts.boundary(where, make_plan(where, "status", status=503)) as hit:
        with pytest.raises(GatewayError) as caught:
            await hit()
        assert caught.value.status == 503


async def test_a_session_exists_although_the_reply_was_lost(parts: RunParts) -> None:
    async with parts.admin(make_plan("session", "cut")) as admin:
        with pytest.raises(GatewayError):
            await admin.create_session(SESSION)
        assert (await admin.stats(SESSION))["turns"] == 0


@pytest.mark.parametrize("what", ["cut", "garbage"])
async def test_a_session_is_finished_although_the_reply_was_lost(
    parts: RunParts, what: FaultKind
) -> None:
    async with parts.admin(make_plan("finish", what, k=1)) as admin:
        await admin.create_session(SESSION)
        if what == "cut":
            with pytest.raises(GatewayError):
                await admin.finish(SESSION)
        else:
            assert await admin.finish(SESSION) == {}
        assert (await admin.stats(SESSION))["finished"]
        assert "stats" in await admin.finish(SESSION)


async def test_a_session_is_deleted_although_the_deletion_fails(parts: RunParts) -> None:
    async with parts.admin(make_plan("teardown", "error", k=1)) as admin:
        await admin.create_session(SESSION)
        with pytest.raises(GatewayError, match="injected error at teardown"):
            await admin.delete(SESSION)
        with pytest.raises(GatewayError, match="no session"):
            await admin.stats(SESSION)


@pytest.mark.parametrize("where", ["session", "turn"])
async def test_a_clock_jump_at_a_call_moves_the_wall_clock(
    parts: RunParts, where: Boundary
) -> None:
    before = time.time()
    async with parts.boundary(where, make_plan(where, "clock_jump", seconds=-7200)) as hit:
        await hit()
    assert time.time() < before - 7000


# --- sandboxes ---------------------------------------------------------------------------------


async def test_429_and_503_at_a_sandbox_boot_push_back(parts: RunParts) -> None:
    for status, pushed_back in ((429, True), (503, True), (500, False)):
        plan = make_plan("sandbox_boot", "status", status=status)
        with pytest.raises(SandboxError) as caught:
            await parts.backend(plan, parts.folders()).create(parts.spec())
        assert caught.value.pushed_back is pushed_back


async def test_a_full_disk_stops_a_sandbox_boot(parts: RunParts) -> None:
    folders = parts.folders()
    with pytest.raises(SandboxError, match="no space left on device"):
        await parts.backend(make_plan("sandbox_boot", "disk_full"), folders).create(parts.spec())
    assert not folders.made


async def test_a_command_prints_garbage(parts: RunParts) -> None:
    async with parts.boundary("exec", make_plan("exec", "garbage", k=1)) as hit:
        result = await hit()
        assert (result.stdout, result.exit_code) == (GARBAGE, 0)
        assert (await hit()).stdout == b"1\n"


def is_running(pid_file: Path) -> bool:
    """Return whether the process that wrote the file runs; a zombie does not."""
    written = pid_file.read_text()
    if not written:  # killed before it wrote
        return False
    try:
        return psutil.Process(int(written)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def wait_until_ended(pid_file: Path) -> None:
    """Return when the process that wrote the file has ended: SIGKILL takes a moment to work."""
    async with asyncio.timeout(10):
        while is_running(pid_file):
            await asyncio.sleep(0.01)


async def test_a_sandbox_that_dies_after_a_turn_ends_its_processes(
    parts: RunParts,
) -> None:
    pid_file = parts.tmp_path / "pid"
    plan = make_plan("turn", "death", k=2)
    backend = parts.backend(plan, turns=lambda name: 2 * pid_file.exists())
    sandbox = await backend.create(parts.spec())
    program = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    with pytest.raises(SandboxError, match="is lost: injected death at turn 2"):
        await sandbox.run(["python", "-c", f"{program}; time.sleep(60)"], deadline_s=60)
    await wait_until_ended(pid_file)
    with pytest.raises(SandboxError, match="is lost"):
        await sandbox.run(["python", "-c", "1"], deadline_s=5)
    with pytest.raises(SandboxError, match="is lost"):
        await capture_patch(parts.task, sandbox)
    await sandbox.close()
    assert parts.injected() == [("turn", "death", ROLLOUT, 2)]


async def test_a_command_that_ends_before_the_death_succeeds(
    parts: RunParts,
) -> None:
    sandbox = await parts.backend(make_plan("turn", "death", k=2)).create(parts.spec())
    result = await sandbox.run(["python", "-c", "print(1)"], deadline_s=20)
    assert result.stdout == b"1\n"
    assert parts.injected() == []
    await sandbox.close()


async def test_a_sandbox_dies_during_a_command(parts: RunParts) -> None:
    async with parts.boundary("exec", make_plan("exec", "death", seconds=0.0)) as hit:
        for _ in range(2):
            with pytest.raises(SandboxError, match="is lost: injected death at exec 1"):
                await hit()
    assert parts.injected() == [("exec", "death", ROLLOUT, 1)]


async def test_cancelling_a_command_in_a_dying_sandbox_ends_its_processes(parts: RunParts) -> None:
    sandbox = await parts.backend(make_plan("turn", "death", k=9)).create(parts.spec())
    pid_file = parts.tmp_path / "pid"
    program = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    command = ["python", "-c", f"{program}; time.sleep(60)"]
    running = asyncio.create_task(sandbox.run(command, deadline_s=60))
    while not pid_file.exists() or not pid_file.read_text():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until_ended(pid_file)
    await sandbox.close()


@pytest.mark.parametrize(("what", "attempt"), [("death", 0), ("garbage", 1)])
async def test_a_grader_that_loses_its_sandbox_gives_no_grade(
    parts: RunParts, what: FaultKind, attempt: int
) -> None:
    injection = Injection(make_plan("grade", what, k=1), parts.store)

    async def no_turns(name: str) -> int:
        return 0

    backend = wrap_backend(parts.sandboxes, injection, no_turns)
    grader = wrap_grader(TaskGrader(SandboxGrader(backend), use_repository_as_is), injection)
    # names that no other test has: processes that were just killed may keep a control group of that
    # name for a moment
    name = f"{ROLLOUT}-a{attempt}-grade"
    verdict = await grader.grade(parts.task, RESULT, name=name, deadline_s=30)
    assert verdict.kind is VerdictKind.INFRA, verdict
    assert parts.injected() == [("grade", what, ROLLOUT, 1)]
    again = await grader.grade(parts.task, RESULT, name=f"{ROLLOUT}-a{attempt}", deadline_s=30)
    assert again.kind is VerdictKind.UNSOLVED


async def test_a_full_disk_stops_the_capture_of_a_patch(parts: RunParts) -> None:
    async with parts.boundary("patch", make_plan("patch", "disk_full", k=1)) as hit:
        with pytest.raises(SandboxError, match="no space left on device"):
            await hit()
        assert (await hit()).diff == b""


# --- the driver's writes -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["store", "deliver", "dump"])
async def test_a_full_disk_is_reported_by_the_write(parts: RunParts, where: Boundary) -> None:
    async with parts.boundary(where, make_plan(where, "disk_full", k=1)) as hit:
        with pytest.raises(StoreError, match="the disk is full") as caught:
            await hit()
        assert caught.value.exit_code is ExitCode.SERVICE_GONE
        assert not parts.store.rollouts()
        await hit()
    assert len(parts.store.rollouts()) == (where != "dump")


@pytest.mark.parametrize("what", ["error", "timeout", "status", "cut", "delay"])
async def test_a_weight_update_is_retried(parts: RunParts, what: FaultKind) -> None:
    async with parts.weights(make_plan("weights", what, k=1)) as (client, engine):
        await client.update_weights(parts.tmp_path, 3)
        assert engine.weight_version == "3"
    assert parts.injected() == [("weights", what, "weights-000003", 1)]


@pytest.mark.parametrize("what", ["exception", "hostile"])
async def test_an_unknown_error_of_a_weight_update_is_raised(
    parts: RunParts, what: FaultKind
) -> None:
    async with parts.weights(make_plan("weights", what)) as (client, engine):
        with pytest.raises(Exception):  # noqa: B017, PT011 (its kind and text are hostile)
            await client.update_weights(parts.tmp_path, 3)
        assert engine.weight_version == "1"
    assert parts.injected()[0] == ("weights", what, "weights-000003", 1)


async def test_a_weight_update_that_always_fails_is_an_error(parts: RunParts) -> None:
    async with parts.weights(make_plan("weights", "status")) as (client, engine):
        with pytest.raises(EngineError):
            await client.update_weights(parts.tmp_path, 3)
        assert engine.weight_version == "1"
    assert len(parts.injected()) == UPDATE_ATTEMPTS


@pytest.mark.parametrize("what", ["hang", "cancelled"])
async def test_a_weight_update_can_be_cancelled(parts: RunParts, what: FaultKind) -> None:
    async with parts.weights(make_plan("weights", what)) as (client, engine):
        updating = asyncio.create_task(client.update_weights(parts.tmp_path, 3))
        await asyncio.wait({updating}, timeout=0.1)
        updating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await updating
        assert engine.weight_version == "1"

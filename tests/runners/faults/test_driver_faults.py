"""What only the driver's boundaries can suffer, each with the effect that the real trouble has."""

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
from runners.faults.grader import FaultyGrader
from runners.faults.injection import Injection
from runners.faults.sandbox import FaultyBackend
from runners.faults.tools_inside import GARBAGE
from runners.gateway.client import GatewayError
from runners.sandboxes.contract import SandboxError
from runners.store.store_error import StoreError
from runners.tasks.contract import VerdictKind
from runners.tasks.grading import SandboxGrader
from tests.runners.faults.boundaries import PATCH, ROLLOUT, SESSION, Places, captured, plan_of

# --- the gateway's admin API -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["session", "finish"])
async def test_a_status_of_the_gateway_is_its_error(places: Places, where: Boundary) -> None:
    async with places.boundary(where, plan_of(where, "status", status=503)) as cross:
        with pytest.raises(GatewayError) as caught:
            await cross()
        assert caught.value.status == 503


async def test_a_reply_that_is_cut_off_leaves_the_session_made(places: Places) -> None:
    async with places.admin(plan_of("session", "cut")) as admin:
        with pytest.raises(GatewayError):
            await admin.create_session(SESSION)
        assert (await admin.stats(SESSION))["turns"] == 0


@pytest.mark.parametrize("what", ["cut", "garbage"])
async def test_a_session_whose_last_reply_is_lost_is_finished(
    places: Places, what: FaultKind
) -> None:
    async with places.admin(plan_of("finish", what, k=1)) as admin:
        await admin.create_session(SESSION)
        if what == "cut":
            with pytest.raises(GatewayError):
                await admin.finish(SESSION)
        else:
            assert await admin.finish(SESSION) == {}
        assert (await admin.stats(SESSION))["finished"]
        assert "stats" in await admin.finish(SESSION)


async def test_a_session_whose_deletion_fails_is_deleted(places: Places) -> None:
    async with places.admin(plan_of("teardown", "error", k=1)) as admin:
        await admin.create_session(SESSION)
        with pytest.raises(GatewayError, match="injected error at teardown"):
            await admin.delete(SESSION)
        with pytest.raises(GatewayError, match="no session"):
            await admin.stats(SESSION)


@pytest.mark.parametrize("where", ["session", "turn"])
async def test_a_clock_jump_moves_the_wall_clock_and_nothing_fails(
    places: Places, where: Boundary
) -> None:
    before = time.time()
    async with places.boundary(where, plan_of(where, "clock_jump", seconds=-7200)) as cross:
        await cross()
    assert time.time() < before - 7000


# --- sandboxes ---------------------------------------------------------------------------------


async def test_a_sandbox_that_is_refused_for_the_load_pushes_back(places: Places) -> None:
    for status, pushed_back in ((429, True), (503, True), (500, False)):
        plan = plan_of("sandbox_boot", "status", status=status)
        with pytest.raises(SandboxError) as caught:
            await places.backend(plan, places.folders()).create(places.spec())
        assert caught.value.pushed_back is pushed_back


async def test_a_sandbox_needs_room_on_the_disk(places: Places) -> None:
    folders = places.folders()
    with pytest.raises(SandboxError, match="no space left on device"):
        await places.backend(plan_of("sandbox_boot", "disk_full"), folders).create(places.spec())
    assert not folders.made


async def test_garbage_is_what_a_command_prints(places: Places) -> None:
    async with places.boundary("exec", plan_of("exec", "garbage", k=1)) as cross:
        result = await cross()
        assert (result.stdout, result.exit_code) == (GARBAGE, 0)
        assert (await cross()).stdout == b"1\n"


def runs(pid_file: Path) -> bool:
    """Whether the process that wrote the file runs; one that nobody has reaped yet does not."""
    written = pid_file.read_text()
    if not written:  # killed before it came to that
        return False
    try:
        return psutil.Process(int(written)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_sandbox_that_dies_at_a_turn_takes_everything_in_it_along(places: Places) -> None:
    pid_file = places.tmp_path / "pid"
    plan = plan_of("turn", "death", k=2)
    backend = places.backend(plan, turns=lambda name: 2 * pid_file.exists())
    sandbox = await backend.create(places.spec())
    program = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    with pytest.raises(SandboxError, match="is lost: injected death at turn 2"):
        await sandbox.run(["python", "-c", f"{program}; time.sleep(60)"], deadline_s=60)
    assert not runs(pid_file)
    with pytest.raises(SandboxError, match="is lost"):
        await sandbox.run(["python", "-c", "1"], deadline_s=5)
    with pytest.raises(SandboxError, match="is lost"):
        await captured(places.task, sandbox)
    await sandbox.close()
    assert places.injected() == [("turn", "death", ROLLOUT, 2)]


async def test_a_sandbox_outlives_a_command_that_ends_before_its_death(places: Places) -> None:
    sandbox = await places.backend(plan_of("turn", "death", k=2)).create(places.spec())
    result = await sandbox.run(["python", "-c", "print(1)"], deadline_s=20)
    assert result.stdout == b"1\n"
    assert places.injected() == []
    await sandbox.close()


async def test_a_sandbox_dies_in_the_middle_of_a_command(places: Places) -> None:
    async with places.boundary("exec", plan_of("exec", "death", seconds=0.0)) as cross:
        for _ in range(2):
            with pytest.raises(SandboxError, match="is lost: injected death at exec 1"):
                await cross()
    assert places.injected() == [("exec", "death", ROLLOUT, 1)]


async def test_cancelling_a_command_in_a_dying_sandbox_ends_it(places: Places) -> None:
    sandbox = await places.backend(plan_of("turn", "death", k=9)).create(places.spec())
    pid_file = places.tmp_path / "pid"
    program = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    command = ["python", "-c", f"{program}; time.sleep(60)"]
    running = asyncio.create_task(sandbox.run(command, deadline_s=60))
    while not pid_file.exists() or not pid_file.read_text():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not runs(pid_file)
    await sandbox.close()


@pytest.mark.parametrize("what", ["death", "garbage"])
async def test_a_grader_that_loses_its_sandbox_has_no_verdict(
    places: Places, what: FaultKind
) -> None:
    injection = Injection(plan_of("grade", what, k=1), places.store)

    async def no_turns(name: str) -> int:
        return 0

    backend = FaultyBackend(places.sandboxes, injection, no_turns)
    grader = FaultyGrader(SandboxGrader(backend), injection)
    name = f"{SESSION}-grade"
    verdict = await grader.grade(places.task, PATCH, name=name, deadline_s=30)
    assert verdict.kind is VerdictKind.INFRA
    assert places.injected() == [("grade", what, ROLLOUT, 1)]
    again = await grader.grade(places.task, PATCH, name=name, deadline_s=30)
    assert again.kind is VerdictKind.UNSOLVED


async def test_a_patch_needs_room_on_the_disk(places: Places) -> None:
    async with places.boundary("patch", plan_of("patch", "disk_full", k=1)) as cross:
        with pytest.raises(SandboxError, match="no space left on device"):
            await cross()
        assert (await cross()).diff == b""


# --- the driver's writes -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["store", "deliver", "dump"])
async def test_a_full_disk_refuses_a_write_and_says_so(places: Places, where: Boundary) -> None:
    async with places.boundary(where, plan_of(where, "disk_full", k=1)) as cross:
        with pytest.raises(StoreError, match="the disk is full") as caught:
            await cross()
        assert caught.value.exit_code is ExitCode.SERVICE_GONE
        assert not places.store.rollouts()
        await cross()
    assert len(places.store.rollouts()) == (where != "dump")


@pytest.mark.parametrize("what", ["error", "timeout", "status", "cut", "delay"])
async def test_an_update_of_the_weights_is_tried_again(places: Places, what: FaultKind) -> None:
    async with places.weights(plan_of("weights", what, k=1)) as (client, engine):
        await client.update_weights(places.tmp_path, 3)
        assert engine.weight_version == "3"
    assert places.injected() == [("weights", what, "weights-000003", 1)]


@pytest.mark.parametrize("what", ["exception", "hostile"])
async def test_what_nobody_expects_of_an_update_is_raised(places: Places, what: FaultKind) -> None:
    async with places.weights(plan_of("weights", what)) as (client, engine):
        with pytest.raises(Exception):  # noqa: B017, PT011 (its kind and text are hostile)
            await client.update_weights(places.tmp_path, 3)
        assert engine.weight_version == "1"
    assert places.injected()[0] == ("weights", what, "weights-000003", 1)


async def test_an_engine_that_never_takes_new_weights_is_an_error(places: Places) -> None:
    async with places.weights(plan_of("weights", "status")) as (client, engine):
        with pytest.raises(EngineError):
            await client.update_weights(places.tmp_path, 3)
        assert engine.weight_version == "1"
    assert len(places.injected()) == UPDATE_ATTEMPTS


@pytest.mark.parametrize("what", ["hang", "cancelled"])
async def test_an_update_of_the_weights_can_be_cancelled(places: Places, what: FaultKind) -> None:
    async with places.weights(plan_of("weights", what)) as (client, engine):
        updating = asyncio.create_task(client.update_weights(places.tmp_path, 3))
        await asyncio.wait({updating}, timeout=0.1)
        updating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await updating
        assert engine.weight_version == "1"

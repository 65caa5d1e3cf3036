"""An attempt without progress is described: its stage, its wait, its sandbox's processes."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from pathlib import Path

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.system.diagnostics.attempt_progress import AttemptProgress, AttemptWatch
from runners.system.diagnostics.stalls import describe_attempts, watch_stalls

STUCK_S = 0.2
NAME = "train-000001-00-00-a0"


def local(tmp_path: Path) -> LocalBackend:
    isolation = "auto" if shutil.which("bwrap") else "none"
    settings = LocalSandboxConfig.model_validate(
        {
            "kind": "local", "isolation": isolation, "memory_mb": 512, "processes": 24,
            "file_mb": 4, "cpu_s": 2, "warm": 0,
        }
    )  # fmt: skip
    return LocalBackend(settings, tmp_path / "sandboxes")


async def until_reported(reported: list[str]) -> None:
    while not reported:
        await asyncio.sleep(0.02)


def folder(tmp_path: Path) -> Path:
    made = tmp_path / "diagnostics"
    made.mkdir()
    return made


@pytest.mark.integration
async def test_a_hung_sandbox_is_described_with_its_stage_and_the_process_that_hangs(
    tmp_path: Path,
) -> None:
    (tmp_path / "source").mkdir()
    written, watch, reported = folder(tmp_path), AttemptWatch(), list[str]()
    backend = await asyncio.to_thread(local, tmp_path)

    async def attempt() -> None:
        with watch.attempt(NAME) as attempt:
            attempt.enter("boot")
            sandbox = await backend.create(SandboxSpec(NAME, tmp_path / "source", "none"))
            attempt.enter("harness")
            await sandbox.run(["sleep", "1000"], deadline_s=1000)

    async with watch_stalls(watch, tmp_path, 3 * STUCK_S, report=reported.append):
        work = asyncio.create_task(attempt(), name="attempt")
        await until_reported(reported)
        work.cancel()
        await asyncio.wait([work])
        await asyncio.sleep(STUCK_S)  # one file per silence
    await backend.close()
    (path,) = written.iterdir()
    assert str(path) in reported[0]
    assert path.name.startswith("driver-stuck-")
    text = path.read_text()
    assert text.startswith("1 attempt made no progress, at ")
    assert f"\n{NAME}: for " in text
    assert re.search(r"in stage harness \(boot \d+\.\d s, harness \d+\.\d s\)", text)
    assert "await sandbox.run(" in text
    inside = text.partition("== processes in its sandboxes on this machine ==\n")[2]
    (line,) = (line for line in inside.splitlines() if line.endswith(": sleep 1000"))
    assert " sleeping" in line


async def test_an_attempt_with_progress_is_not_reported(tmp_path: Path) -> None:
    written, watch, reported = folder(tmp_path), AttemptWatch(), list[str]()
    turned = time.monotonic()

    def last_turn_s(session_id: str) -> float | None:
        return time.monotonic() - turned if session_id == "turning" else None

    async with watch_stalls(
        watch, tmp_path, 4 * STUCK_S, last_turn_s=last_turn_s, report=reported.append
    ):
        with watch.attempt("staging") as staging, watch.attempt("turning") as turning:
            turning.enter("harness")
            for stage in range(12):
                staging.enter(str(stage % 2))
                turned = time.monotonic()
                await asyncio.sleep(STUCK_S / 2)
    assert reported == []
    assert list(written.iterdir()) == []


async def test_a_stall_is_reported_once_per_stage(tmp_path: Path) -> None:
    folder(tmp_path)
    watch, reported = AttemptWatch(), list[str]()
    async with watch_stalls(watch, tmp_path, STUCK_S, report=reported.append):
        with watch.attempt("one") as attempt:
            for stage in ("boot", "harness"):
                attempt.enter(stage)
                await until_reported(reported)
                await asyncio.sleep(2 * STUCK_S)
                assert len(reported) == 1
                reported.clear()


async def test_of_many_attempts_that_hang_alike_a_few_are_described(tmp_path: Path) -> None:
    written, watch, reported = folder(tmp_path), AttemptWatch(), list[str]()
    gate = asyncio.Event()

    async def attempt(number: int) -> None:
        with watch.attempt(f"rollout-{number}") as attempt:
            attempt.enter("harness")
            await gate.wait()

    async with (
        watch_stalls(watch, tmp_path, STUCK_S, report=reported.append),
        asyncio.TaskGroup() as group,
    ):
        for number in range(20):
            group.create_task(attempt(number))
        await until_reported(reported)
        gate.set()
    (path,) = written.iterdir()
    text = path.read_text()
    assert all(f"rollout-{number}: for " in text for number in range(20))
    assert text.count("====\n") == 8
    assert "(12 more are not described)" in text


async def test_with_zero_seconds_nothing_is_watched(tmp_path: Path) -> None:
    async with watch_stalls(AttemptWatch(), tmp_path, 0):
        assert [task.get_name() for task in asyncio.all_tasks()].count("stuck-watch") == 0


def test_attempts_in_flight_are_a_line_each() -> None:
    watch = AttemptWatch()
    with watch.attempt("one") as attempt, watch.attempt("two"):
        attempt.enter("grade")
        first, second = describe_attempts(watch).splitlines()
    assert re.fullmatch(r"one in stage grade \(grade \d+\.\d s\)", first)
    assert second == "two in stage (none yet) (just begun)"
    assert isinstance(attempt, AttemptProgress)

"""A driver is diagnosed as it is configured: its loop, its attempts, and what a signal cuts off."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ExitCode
from runners.observe.live.progress import Progress
from runners.observe.live.status import read_status
from runners.records.store.run_store import RunStore
from runners.services.driver import RunDriver, RunEnd, open_run
from tests.fakes.records import a_turn

SESSION = "train-000001-00-00-a0"


def drive(
    run_dir: Path,
    work: Callable[[Progress, RunStore], Awaitable[None]],
    *overrides: str,
    close: Callable[[], object] = lambda: None,
) -> tuple[RunEnd, Progress]:
    config = compose(["observe.dashboard=off", *overrides])
    progress = Progress("run", 1)
    with RunStore.create(run_dir, config.model_dump(mode="json")) as store:

        async def working() -> None:
            await work(progress, store)

        return RunDriver(config, store, progress).run(working, close), progress


def diagnosis(run_dir: Path, kind: str) -> str:
    (path,) = (run_dir / "diagnostics").glob(f"driver-{kind}-*.txt")
    return path.read_text()


def test_a_blocked_loop_is_described_with_the_attempts_in_flight(tmp_path: Path) -> None:
    async def block(progress: Progress, store: RunStore) -> None:
        with progress.watch.attempt(SESSION) as attempt:
            attempt.enter("harness")
            time.sleep(1)

    end, progress = drive(tmp_path / "run", block, "observe.watchdog_s=0.2")
    assert end.exit_code == ExitCode.DONE
    assert "has not run for" in progress.notes[0]
    text = diagnosis(tmp_path / "run", "stall")
    assert f"== attempts in flight ==\n{SESSION} in stage harness" in text
    assert "block\n    time.sleep(1)" in text
    (named,) = read_status(tmp_path / "run").diagnoses
    assert "driver-stall-" in named


def test_an_attempt_hangs_when_its_turns_stop(tmp_path: Path) -> None:
    took: list[float] = []

    async def hang(progress: Progress, store: RunStore) -> None:
        store.add_session(SESSION, {})
        with progress.watch.attempt(SESSION) as attempt:
            attempt.enter("harness")
            begun = time.monotonic()
            for index in range(4):
                await asyncio.sleep(0.2)
                assert not progress.notes
                store.add_turn(a_turn(SESSION, index, started_at=time.time(), total_s=0.0))
            while not progress.notes:
                await asyncio.sleep(0.02)
            took.append(time.monotonic() - begun)

    drive(tmp_path / "run", hang, "observe.stuck_s=0.6")
    assert took[0] > 0.8 + 0.6 - 0.1  # from the last turn, not from the stage
    assert f"{SESSION}: for " in diagnosis(tmp_path / "run", "stuck")


def test_both_can_be_switched_off(tmp_path: Path) -> None:
    async def block(progress: Progress, store: RunStore) -> None:
        with progress.watch.attempt(SESSION):
            time.sleep(0.3)
            await asyncio.sleep(0.3)

    _, progress = drive(tmp_path / "run", block, "observe.watchdog_s=0", "observe.stuck_s=0")
    assert not progress.notes
    assert list((tmp_path / "run" / "diagnostics").iterdir()) == []
    assert read_status(tmp_path / "run").diagnoses == []


def test_what_a_second_signal_cuts_off_is_kept(tmp_path: Path) -> None:
    kept: list[str] = []

    async def cut_off() -> None:
        await asyncio.Event().wait()

    async def leave(progress: Progress, store: RunStore) -> None:
        with progress.watch.attempt(SESSION) as attempt:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            try:
                await cut_off()
            finally:
                kept.append(attempt.pending)

    end, _ = drive(tmp_path / "run", leave)
    assert end.exit_code == ExitCode.TERMINATED
    assert ".cut_off\n" in kept[0]


def test_a_signal_while_the_results_are_written_leaves_a_run_with_its_end(tmp_path: Path) -> None:
    async def nothing(progress: Progress, store: RunStore) -> None:
        pass

    before = signal.getsignal(signal.SIGTERM)
    end, _ = drive(tmp_path / "run", nothing, close=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert end.exit_code == ExitCode.DONE
    assert read_status(tmp_path / "run").state == "done"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_is_stored_with_paths_that_mean_the_same_in_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").touch()
    sets = "task.sets=[{path:rows.jsonl,exclude:names.txt}]"
    policy = ["model=local", "model.path=w", "model.tokenizer=w", "model.renderer=qwen3"]
    config = compose(["observe.dashboard=off", "task=mixture", sets, *policy, "run.eval_tasks=0"])
    with open_run(config, Path("run"), resume=False) as store:
        RunDriver(config, store, Progress("run", steps=0)).run(nothing, lambda: None)
        stored = store.config()
    assert stored["model"]["path"] == str(tmp_path / "w")
    (found,) = stored["task"]["sets"]
    assert (found["path"], found["exclude"]) == (
        str(tmp_path / "rows.jsonl"),
        str(tmp_path / "names.txt"),
    )


async def nothing() -> None:
    """Do no work."""

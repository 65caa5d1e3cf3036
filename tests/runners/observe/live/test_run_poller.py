"""Following a run: its progress is shown, nothing is changed, and it ends with its driver."""

from __future__ import annotations

import io
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from runners.observe.live.run_poller import follow_run
from runners.observe.live.status import Status
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.system.processes.ledger import Ledger
from tests.fakes.records import CONFIG, a_rollout, example_run, write_session


def watched(run_dir: Path, happens: Callable[[RunStore], None]) -> tuple[Status, str]:
    """Look on while something happens to a running run; return its end and what was shown."""
    out = io.StringIO()
    console, ended = Console(file=out, width=200), []
    looking = threading.Thread(
        target=lambda: ended.append(follow_run(run_dir, console, every_s=0.01)), daemon=True
    )
    with RunStore.open(run_dir) as store:
        store.set_state(State.RUNNING)
        looking.start()
        while not any(thread.name == "progress-log" for thread in threading.enumerate()):
            time.sleep(0.01)
        happens(store)
        looking.join(30)
    (status,) = ended
    return status, out.getvalue()


def test_steps_evaluations_and_events_are_shown_until_the_run_ends(tmp_path: Path) -> None:
    example_run(tmp_path / "run").close()

    def happens(store: RunStore) -> None:
        store.begin_step(2, ["t"])
        store.event("retry", {"rollout_id": "train-000002-00-00", "code": "infra.[model]\x1b[2J"})
        store.put_rollout(a_rollout("train-000002-00-00"))
        store.finish_step(
            2, {"train/reward_mean": 0.5, "train/solve_rate": 0.625, "time/step_s": 3}
        )
        store.finish_evaluation(2, {"solve_rate": 0.875, "tasks": 8})
        store.set_state(State.DONE, exit_code=0)

    status, shown = watched(tmp_path / "run", happens)
    assert (status.state, status.exit_code, status.steps_done) == ("done", 0, 2)
    for part in (
        "step 2/3  reward 0.500",
        "solve rate 62.5%",
        "step 2/3  held-out solve rate 87.5%",
    ):
        assert part in shown
    assert "infra.[model]\ufffd[2J" in shown


def test_a_run_whose_driver_dies_is_no_longer_followed(tmp_path: Path) -> None:
    example_run(tmp_path / "run").close()

    def happens(store: RunStore) -> None:
        with sqlite3.connect(store.run_dir / "store.sqlite") as db:
            db.execute("UPDATE run SET pid_started_at = pid_started_at - 100")

    status, _ = watched(tmp_path / "run", happens)
    assert (status.state, status.exit_code) == ("killed", None)


@pytest.mark.parametrize("benchmark", [None, "bugfix"])
def test_the_dashboard_has_phase_bar_and_attempts_in_flight(
    tmp_path: Path, benchmark: str | None
) -> None:
    config = CONFIG | {
        "run": {"steps": 3, "rollouts_per_task": 4},
        "eval": {"tasks": 2, "attempts_per_task": 2},
    }
    with RunStore.create(tmp_path / "run", config) as store:
        store.set_state(State.RUNNING, benchmark=benchmark)
        store.begin_step(1, ["t"])
        ledger = Ledger(store)
        for member in range(3):
            ledger.register("session", f"train-000001-00-{member:02}-a0")
        write_session(store, "train-000001-00-00-a0", 1)
        ledger.register("sandbox", "train-000001-00-09-a0-grade")
        store.put_rollout(a_rollout("train-000001-00-03"))
        out = io.StringIO()
        console = Console(file=out, width=100, height=30, force_terminal=True, color_system=None)
        ending = threading.Timer(0.5, lambda: _end(store.run_dir))
        ending.start()
        follow_run(store.run_dir, console, mode="on", every_s=0.05)
        ending.join()
    shown = out.getvalue()
    assert ("evaluation" if benchmark else "rollouts") in shown
    assert "1/4" in shown
    for stage, number in (("boot", 2), ("harness", 1), ("grade", 1)):
        assert any(stage in line and f" {number} " in line for line in shown.splitlines()), stage


def _end(run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        store.set_state(State.DONE, exit_code=0)


def test_a_run_that_has_ended_is_over_at_once(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        store.set_state(State.RUNNING)
        store.set_state(State.FAILED, exit_code=1, message="so it is")
    before = (tmp_path / "run" / "store.sqlite").read_bytes()
    status = follow_run(tmp_path / "run", Console(file=io.StringIO()))
    assert (status.state, status.message) == ("failed", "so it is")
    assert (tmp_path / "run" / "store.sqlite").read_bytes() == before

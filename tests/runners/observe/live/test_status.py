"""Status and summary are read from the store alone, whether the run lives or not."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from runners.observe.live.status import read_status, render
from runners.observe.live.summary import summary_table
from runners.records.checkpoints import CHECKPOINTS, directory_name
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from tests.fakes.records import CONFIG, a_rollout, example_run, run_with_parts


def text(renderable: RenderableType) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return example_run(tmp_path / "example")


def test_the_status_of_a_running_run_shows_its_progress(store: RunStore) -> None:
    store.set_state(State.RUNNING)
    store.begin_step(2, ["a"])
    store.put_rollout(a_rollout("train-000002-00-00"))
    store.put_rollout(a_rollout("train-000002-00-01", counts=False))
    found = read_status(store.run_dir)
    assert (found.state, found.driver_pid, found.resume_command) == ("running", os.getpid(), None)
    assert (found.steps_done, found.steps, found.step_rollouts) == (1, 3, 1)
    assert found.evaluations == [(0, 0.25), (1, 0.75)]
    assert found.outcomes == {"policy.finished": 4, "infra.sandbox_lost": 1}
    assert (found.attempts, found.metrics["train/solve_rate"]) == (7, pytest.approx(2 / 3))
    assert json.loads(json.dumps(found.to_dict()))["state"] == "running"
    shown = text(render(found))
    for part in ("1 of 3", "held-out after 1", "75.0%", f"process {os.getpid()}"):
        assert part in shown


def test_an_alarm_is_shown_with_its_evidence_and_its_fix(store: RunStore) -> None:
    assert read_status(store.run_dir).alarms == []
    store.begin_step(2, ["a"])
    for member in range(4):
        outcome = Outcome(OutcomeCode.GRADER_ERROR, Stage.GRADE, "no verdict")
        name = f"train-000002-00-0{member}"
        store.put_rollout(replace(a_rollout(name), outcome=outcome, solved=None, reward=None))
    store.finish_step(2, {"train/solve_rate": None})
    found = read_status(store.run_dir)
    [alarm] = found.alarms
    assert alarm.name == "dead_grader"
    shown = text(render(found))
    assert "alarm: dead_grader" in shown
    assert "4 of grader.error" in shown
    assert "agentrl tasks check" in shown
    assert json.loads(json.dumps(found.to_dict()))["alarms"][0]["name"] == "dead_grader"


def test_training_tasks_are_counted_by_their_last_step(store: RunStore) -> None:
    store.put_rollout(a_rollout("train-000002-00-00", task_id="a", solved=False))
    store.put_rollout(a_rollout("train-000002-01-00", task_id="b"))
    store.put_rollout(a_rollout("train-000002-02-00", task_id="c", solved=None))
    found = read_status(store.run_dir)
    assert found.tasks == {"tried": 3, "never_solved": 1, "always_solved": 1}
    assert "3 tried; when last tried, 1 never, 1 always solved" in text(render(found))
    assert json.loads(json.dumps(found.to_dict()))["tasks"] == found.tasks


def test_tampering_is_shown_with_its_evidence(store: RunStore) -> None:
    evidence = "canary: 1 of 2 tests that must fail were reported as passed (a.T.test)"
    outcome = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, evidence)
    store.put_rollout(replace(a_rollout("train-000001-00-09"), outcome=outcome))
    found = read_status(store.run_dir)
    assert found.tampered == {"train-000001-00-09": evidence}
    assert found.outcomes["policy.tampered"] == 1
    assert "1 of 2 tests that must fail" in text(render(found))


def test_parts_of_tasks_are_shown_where_they_are_paid(tmp_path: Path) -> None:
    with run_with_parts(tmp_path / "paid", 0.3) as store:
        found = read_status(store.run_dir)
        document = json.loads(json.dumps(found.to_dict()))
    assert document["partly_solved"] == [
        {"split": "train", "graded": 3, "count": 1, "mean_share": 0.25},
        {"split": "eval", "graded": 1, "count": 1, "mean_share": 0.5},
    ]
    shown = text(render(found))
    assert "solved in part (train)" in shown
    assert "1 of 3 graded, 25% of their tests on average" in shown
    with run_with_parts(tmp_path / "unpaid", 0.0) as store:
        found = read_status(store.run_dir)
    assert (found.partly_solved, "in part" in text(render(found))) == ([], False)


def test_a_run_whose_driver_is_gone_is_killed_and_can_be_resumed(store: RunStore) -> None:
    store.set_state(State.RUNNING)
    store.close()
    with sqlite3.connect(store.run_dir / "store.sqlite") as db:
        db.execute("UPDATE run SET pid_started_at = pid_started_at - 100")  # that pid, used again
    found = read_status(store.run_dir)
    assert found.state == "killed"
    assert found.to_dict()["resume"] == f"agentrl run --resume {store.run_dir}"
    assert "killed" in text(render(found))


def test_the_last_evaluation_and_the_best_checkpoint_are_shown(store: RunStore) -> None:
    assert read_status(store.run_dir).best_checkpoint is None
    store.begin_step(2, ["task"])
    store.finish_step(2, {})
    store.finish_evaluation(2, {"solve_rate": 0.5, "pass@2": 0.625, "tasks": 4})
    for step in (1, 2):
        (store.run_dir / CHECKPOINTS / directory_name(step)).mkdir(parents=True)
    found = read_status(store.run_dir)
    best = str(store.run_dir / CHECKPOINTS / directory_name(1))
    assert found.best_checkpoint == {"step": 1, "solve_rate": 0.75, "path": best}
    assert found.evaluation["pass@2"] == 0.625
    shown = text(render(found))
    assert "62.5%" in shown
    assert "step-000001 (75.0%)" in shown
    assert "best checkpoint" in text(summary_table(summary(best_checkpoint=found.best_checkpoint)))


@pytest.mark.parametrize(
    ("state", "resumable"),
    [(State.DONE, False), (State.INTERRUPTED, True), (State.FAILED, True)],
)
def test_a_run_that_ended_has_its_state_and_message(
    store: RunStore, state: State, resumable: bool
) -> None:
    store.set_state(State.RUNNING)
    store.set_state(state, exit_code=4, message="the engine [gone] /x/")
    found = read_status(store.run_dir)
    assert (found.state, found.exit_code) == (state, 4)
    assert (found.resume_command is not None) == resumable
    assert "the engine [gone] /x/" in text(render(found))


def test_a_run_that_was_only_created_has_a_status(tmp_path: Path) -> None:
    RunStore.create(tmp_path, CONFIG).close()
    found = read_status(tmp_path)
    assert (found.state, found.steps_done, found.evaluations, found.metrics) == (
        "created",
        0,
        [],
        {},
    )
    assert "0 of 3" in text(render(found))


def test_a_directory_without_a_run_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        read_status(tmp_path)
    assert list(tmp_path.iterdir()) == []


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "run_dir": "/runs/[a]",
        "steps": 40,
        "eval": {"first": 0.36, "last": 0.875},
        "wall_s": 401.2,
        "rollouts": 2688,
        "outcomes": {"budget.turns": 12, "policy.finished": 2676},
        "groups": {"total": 320, "flat": 20, "dropped": 0},
        "tokens": {"sampled": 123456, "in_loss": 123456, "trained": 100000},
    } | changes


def test_the_summary_shows_every_figure() -> None:
    shown = text(summary_table(summary()))
    for part in ("36.0% → 87.5%", "2,688", "123,456", "6:41", "/runs/[a]", "budget.turns"):
        assert part in shown
    assert shown.index("policy.finished") < shown.index("budget.turns")


def test_the_summary_shows_the_mismatch_with_and_without_routing_replay() -> None:
    routing = {"captured": 0.998, "disagree_token": 0.1, "k3": 1.2e-6, "k3_native": 3.4e-5}
    shown = text(summary_table(summary(routing=routing)))
    assert "99.8%" in shown
    assert "1.2e-06 (3.4e-05 without)" in shown
    assert "without" not in text(summary_table(summary(routing=routing | {"k3_native": None})))
    assert "k3" not in text(summary_table(summary()))
    recomputed = text(summary_table(summary(routing=routing | {"captured": None})))
    assert "captured" not in recomputed
    assert "1.2e-06" in recomputed


def test_the_summary_of_a_run_that_was_evaluated_once_shows_that_one_rate() -> None:
    once = text(summary_table(summary(eval={"first": 0.36, "last": None})))
    assert "36.0%" in once
    assert "→" not in once
    never = text(summary_table(summary(eval={"first": None, "last": None})))
    assert "held-out" not in never

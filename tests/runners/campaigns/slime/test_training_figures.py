"""Figures that training writes become metrics of their step, whenever they come."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from conf.compose import compose
from runners.campaigns.slime import job
from runners.campaigns.slime.job_recorder import JobRecorder
from runners.campaigns.slime.megatron.mismatch_sums import SIZE
from runners.campaigns.slime.megatron.router_counts import COUNTS
from runners.campaigns.slime.megatron.step_figures import (
    FAULT,
    FOLDER,
    StepFigures,
    drop_figures,
    judge_step,
    move_figures,
)
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore

SLIME = (
    *("trainer=slime", "model=qwen3_30b_a3b", "model.path=/weights", "launch=slurm"),
    *("launch.shared_dir=/shared", "task=jsonl", "task.path=/t.jsonl", "routing_replay=rollout"),
)
CONFIG = compose(list(SLIME))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", CONFIG.model_dump(mode="json"))


def finish(store: RunStore, *steps: int) -> None:
    for step in steps:
        store.begin_step(step, [])
        store.finish_step(step, {"train/reward_mean": 0.5})


def figures(step: int, k3: float = 0.01, fault: str | None = None) -> StepFigures:
    return StepFigures(step, {"policy/k3": k3, "r3/k3": k3}, fault)


def test_figures_wait_for_their_step_and_are_moved_once(store: RunStore) -> None:
    finish(store, 1)
    for step in (1, 2):
        figures(step).write(store.run_dir)
    assert move_figures(store) == ""
    (first,) = store.steps()
    assert first.metrics == {"train/reward_mean": 0.5, "policy/k3": 0.01, "r3/k3": 0.01}
    assert move_figures(store) is None
    finish(store, 2)
    assert move_figures(store) == ""
    assert store.steps()[1].metrics["r3/k3"] == 0.01
    assert list((store.run_dir / FOLDER).iterdir()) == []


def test_figures_of_steps_that_are_lost_are_dropped_and_rubbish_is_skipped(
    store: RunStore,
) -> None:
    for step in (1, 2, 3):
        figures(step).write(store.run_dir)
    (store.run_dir / FOLDER / "step-000009.json").write_text("{")
    drop_figures(store.run_dir, 2)
    finish(store, 1, 2, 3)
    move_figures(store)
    assert ["r3/k3" in row.metrics for row in store.steps()] == [True, True, False]


async def test_a_job_that_continues_forgets_the_figures_of_lost_steps(store: RunStore) -> None:
    finish(store, 1, 2)
    figures(2).write(store.run_dir)
    JobRecorder(CONFIG, store).start(1)
    assert list((store.run_dir / FOLDER).iterdir()) == []


def test_a_fault_is_the_message_with_which_the_job_ends(store: RunStore) -> None:
    finish(store, 1)
    store.set_state(State.RUNNING)
    figures(1, fault="a third of layer 7").write(store.run_dir)
    run_dir = store.run_dir
    store.close()
    job.end(run_dir, 1)
    with RunStore.open(run_dir, read_only=True) as after:
        (event,) = after.events(FAULT)
        assert event.data == {"step": 1, "reason": "a third of layer 7"}
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["message"] == "routing replay: a third of layer 7"
    assert json.loads((run_dir / "metrics.jsonl").read_text())["r3/k3"] == 0.01


def test_a_layer_is_judged_by_the_tokens_of_all_processes() -> None:
    """60 % of 4 tokens' choices are no evidence, of 400 tokens' they are."""
    for tokens, is_fault in ((4, False), (400, True)):
        layers = np.zeros((3, len(COUNTS)))
        layers[1:, :2] = tokens, tokens * 8
        layers[2, 2] = tokens * 8 * 0.6
        sums = np.concatenate([np.zeros(SIZE), layers.ravel()])
        found = judge_step(1, sums, CONFIG.routing_replay, 2)
        assert found.metrics["r3/disagree_slot"] == pytest.approx(0.3)
        assert (found.fault is not None) is is_fault
    assert found.fault == (
        "60% of layer 2's replayed choices for 400 tokens are none that training would make"
    )


def test_one_process_whose_router_did_not_replay_is_enough() -> None:
    layers = np.zeros((3, len(COUNTS)))
    layers[1:, :2] = 100, 800
    layers[2, 3] = 1
    sums = np.concatenate([np.zeros(SIZE), layers.ravel()])
    fault = judge_step(1, sums, CONFIG.routing_replay, 2).fault
    assert fault == (
        "2 of 2 routers replayed the rollouts' experts, and 1 not once per micro-batch"
    )

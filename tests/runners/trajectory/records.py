"""Records as a small campaign would write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runners.outcome import Outcome, OutcomeCode, Stage
from runners.trajectory.record import RolloutRecord, Turn
from runners.trajectory.store import RunStore

CONFIG = {"run": {"steps": 3}, "scenario": {"kind": "linear"}}

_SYSTEM = {"role": "system", "content": "You repair programs."}
_TASK = {"role": "user", "content": "The sum is wrong. {} %s ünïcode"}
_TOOLS = [{"type": "function", "function": {"name": "Bash", "parameters": {}}}]


def a_turn(session_id: str = "train-000001-00-00-a0", index: int = 0, **changes: Any) -> Turn:
    """Return a turn of 3 (then 2) new prompt tokens and 2 sampled ones."""
    first = index == 0
    turn = Turn(
        session_id=session_id,
        index=index,
        branch="main",
        segment=0,
        prompt_kept=0 if first else 5 + 4 * (index - 1),
        prompt_new=np.array([1, 2, 3] if first else [4, 5], np.int32),
        output_ids=np.array([100 + index, 7], np.int32),
        output_logprobs=np.array([-0.25, -0.1], np.float32),
        weight_version=3,
        finish_reason="stop",
        break_reason=None,
        malformed_calls=0,
        request={"messages": [_SYSTEM, _TASK], "tools": _TOOLS, "max_tokens": 64}
        if first
        else {"messages": [{"role": "tool", "tool_call_id": f"c{index - 1}", "content": "ok"}]},
        response={
            "role": "assistant",
            "content": [
                {"type": "text", "text": f"turn {index}"},
                {"type": "tool_use", "id": f"c{index}", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        usage={"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0},
        started_at=1000.5 + index,
        engine_s=0.25,
        total_s=0.5,
    )
    return replace(turn, **changes)


def a_rollout(rollout_id: str = "train-000001-00-00", **changes: Any) -> RolloutRecord:
    """Return a solved training rollout of two turns that counts."""
    split, step, group, member = rollout_id.split("-")
    record = RolloutRecord(
        rollout_id=rollout_id,
        attempt=0,
        step=int(step),
        split=split,
        group=int(group),
        member=int(member),
        task_id="sum-of-squares-001",
        session_id=f"{rollout_id}-a0",
        counts=True,
        outcome=Outcome(OutcomeCode.POLICY_FINISHED, Stage.GRADE, "", "submitted"),
        reward=1.0,
        solved=True,
        advantage=0.5,
        turns=2,
        sampled_tokens=4,
        trained_tokens=4,
        final_message="fixed",
        patch="--- a/x.py\n+++ b/x.py\n",
        verdict={"passed": ["test_sum"], "failed": []},
        timings={"boot": 0.1, "harness": 2.0, "total": 3.0},
    )
    return replace(record, **changes)


LOST = Outcome(OutcomeCode.INFRA_SANDBOX_LOST, Stage.HARNESS, "gone: {} %s \x00", None)


def write_session(store: RunStore, session_id: str, turns: int) -> None:
    """Store a session of so many turns."""
    store.add_session(session_id, {"scenario": "linear"})
    for index in range(turns):
        store.add_turn(a_turn(session_id, index))


def example_run(run_dir: Path) -> RunStore:
    """Make a run with one finished step: a solved rollout, an unsolved, a retried, a lost."""
    store = RunStore.create(run_dir, CONFIG)
    store.finish_evaluation(0, {"solve_rate": 0.25, "tasks": 4})
    store.begin_step(1, ["sum-of-squares-001"])
    solved = a_rollout()
    unsolved = a_rollout("train-000001-00-01", reward=0.0, solved=False, advantage=-0.5)
    failed = a_rollout("train-000001-00-02", outcome=LOST, counts=False, reward=None, solved=None)
    retried = replace(failed, attempt=1, session_id="train-000001-00-02-a1", counts=True)
    retried = replace(retried, outcome=solved.outcome, reward=1.0, solved=True)
    lost = a_rollout(
        "train-000001-00-03",
        outcome=LOST,
        reward=None,
        solved=None,
        advantage=None,
        turns=0,
        sampled_tokens=0,
        trained_tokens=0,
        final_message="",
        patch="",
        verdict=None,
    )
    for record in (solved, unsolved, failed, retried, lost):
        write_session(store, record.session_id, record.turns)
        store.put_rollout(record)
    metrics = {"train/reward_mean": 2 / 3, "train/solve_rate": 2 / 3, "loss/policy": -0.01}
    store.finish_step(1, metrics)
    store.finish_evaluation(1, {"solve_rate": 0.75, "tasks": 4})
    return store

"""Runs that reports and comparisons are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conf.compose import compose
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout

R3 = {
    "r3/k1": 1e-5,
    "r3/k3": 2e-5,
    "r3/p999_abs": 0.25,
    "r3/F_1.1": 0.0125,
    "r3/F_2": 0.0,
    "r3/k3_native": 8e-5,
    "r3/p999_abs_native": 0.75,
    "r3/F_1.1_native": 0.03,
    "r3/captured": 1.0,
    "r3/replayed": 0.99,
    "r3/disagree_slot": 0.004,
    "r3/disagree_token": 0.02,
    "r3/disagree_sample_max": 0.01,
    "r3/invalid_rows": 7.0,
    "r3/refused_samples": 0.0,
    "r3/gate_grad_norm": 0.05,
    "r3/routing_share": 0.75,
}


def routed_run(run_dir: Path, **later: Any) -> RunStore:
    """Make a run of two steps with routing replay; ``later`` is the second's."""
    config = compose(["routing_replay=rollout", "run.steps=2"]).model_dump(mode="json")
    store = RunStore.create(run_dir, config)
    for step, metrics in ((1, R3), (2, R3 | later)):
        store.begin_step(step, ["t"])
        store.put_rollout(a_rollout(f"train-00000{step}-00-00"))
        store.finish_step(step, {"policy/k3": 2e-5, **metrics})
    return store


def make_run(run_dir: Path, solved: dict[str, bool], *, steps: int = 2, **config: Any) -> Path:
    """Write a campaign that was evaluated before and after its steps."""
    with RunStore.create(run_dir, CONFIG | config) as store:
        for step in (0, steps):
            for group, (task, verdict) in enumerate(solved.items()):
                name = f"eval-{step:06}-{group:03}-00"
                store.put_rollout(a_rollout(name, task_id=task, solved=verdict and step > 0))
            rate = sum(solved.values()) / len(solved) if step else 0.0
            store.finish_evaluation(step, {"solve_rate": rate, "tasks": len(solved)})
        for step in range(1, steps + 1):
            store.begin_step(step, ["t"])
            store.put_rollout(a_rollout(f"train-{step:06}-00-00"))
            store.finish_step(step, {"train/solve_rate": 1.0, "train/reward_mean": 0.5 * step})
    return run_dir

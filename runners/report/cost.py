"""Reckon what a run has used, and what that costs where the configuration has prices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from runners.store.run_store import RunStore
from runners.store.session_tables import SAMPLED_TOKENS
from runners.trajectory.outcome import TEARDOWN, Stage

HELD = (Stage.BOOT, Stage.HARNESS, Stage.PATCH, TEARDOWN, Stage.GRADE)
"""Stages during which an attempt holds a sandbox: its own, or that of its grading."""
HOUR_S, MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """The use of a run so far, over all its attempts: retried ones and evaluations too."""

    run_hours: float
    """In which its driver ran."""
    gpu_hours: float
    """Of the GPUs that a job holds, or the local trainer is given; 0: none is known."""
    sandbox_hours: float
    """In which attempts held a sandbox. How much CPU time each used is not recorded."""
    prompt_tokens: int
    """Of stored turns, what the engine had cached included."""
    sampled_tokens: int
    tasks_solved: int
    """Tasks that a rollout solved."""
    priced: dict[str, float]
    """By the key of the price; only what has one. Hours of GPUs that are not known have none."""

    @property
    def total(self) -> float | None:
        """Sum of what has a price; None if nothing has."""
        return sum(self.priced.values()) if self.priced else None

    @property
    def per_solved_task(self) -> float | None:
        """``total`` by the tasks that were solved; None without one."""
        total = self.total
        return total / self.tasks_solved if total is not None and self.tasks_solved else None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return asdict(self) | {"total": self.total, "per_solved_task": self.per_solved_task}


def read_cost(store: RunStore, config: dict[str, Any], wall_s: float) -> Cost:
    """Return the cost of a run whose driver ran for ``wall_s`` seconds; raises StoreError."""
    held = " + ".join(f"coalesce(json_extract(timings, '$.{stage}'), 0)" for stage in HELD)
    ((seconds, solved),) = store.query(
        f"SELECT coalesce(sum({held}), 0), count(DISTINCT CASE WHEN counts AND solved THEN task_id "
        "END) FROM rollout"
    )
    ((prompts, sampled),) = store.query(
        "SELECT coalesce(sum(json_extract(usage, '$.prompt_tokens')), 0), "
        f"coalesce(sum({SAMPLED_TOKENS}), 0) FROM turn"
    )
    hours = wall_s / HOUR_S
    used = {
        "gpu_hour": hours * count_gpus(config),
        "sandbox_hour": seconds / HOUR_S,
        "input_token_million": prompts / MILLION,
        "output_token_million": sampled / MILLION,
    }
    prices = config.get("observe", {}).get("prices", {})  # runs of older versions have none
    return Cost(
        run_hours=hours,
        gpu_hours=used["gpu_hour"],
        sandbox_hours=used["sandbox_hour"],
        prompt_tokens=prompts,
        sampled_tokens=sampled,
        tasks_solved=solved,
        priced={
            name: amount * prices[name]
            for name, amount in used.items()
            if prices.get(name) is not None and (name != "gpu_hour" or used[name])
        },
    )


def count_gpus(config: dict[str, Any]) -> int:
    """Return the GPUs of a configuration: of the nodes of a job, or of the local trainer."""
    launch, trainer = config.get("launch", {}), config.get("trainer", {})
    if "gpus_per_node" in launch:
        return int(launch.get("nodes") or 1) * int(launch["gpus_per_node"] or 0)
    return int(trainer.get("devices", 1)) if trainer.get("device") == "cuda" else 0

"""Rollouts to run: their names, seeds and sampling temperature, derived from the configuration.

One seed per named thing of a run, so that what is drawn for one thing does not move another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from conf.schema import Config
from runners.records.ids import rollout_id
from runners.tasks.contract import Task


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """One rollout to run: its place in the run, its task, its seed."""

    rollout_id: str
    """Unique in the run; see ``runners.records.ids``."""
    split: str
    """"train" or "eval"."""
    step: int
    group: int
    member: int
    task: Task
    seed: int
    temperature: float


def make_spec(
    config: Config,
    split: str,
    step: int,
    group: int,
    member: int,
    task: Task,
    *,
    temperature: float | None = None,
) -> RolloutSpec:
    """Return a rollout of a run; ``temperature``: None is the configuration's for that split.

    An evaluation draws the same seeds whatever the step: before and after training only the policy
    differs.
    """
    name = rollout_id(split, step, group, member)
    evaluation = split == "eval"
    if temperature is None:
        sampling = config.sampling
        temperature = sampling.eval_temperature if evaluation else sampling.temperature
    eval_name = f"eval-{group}" + (f"-{member}" if member else "")
    return RolloutSpec(
        rollout_id=name,
        split=split,
        step=step,
        group=group,
        member=member,
        task=task,
        seed=derive_seed(config.seed, eval_name if evaluation else name),
        temperature=temperature,
    )


def derive_seed(seed: int, name: str) -> int:
    """Return a 31-bit seed (what every engine accepts) for one named thing of a run."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1

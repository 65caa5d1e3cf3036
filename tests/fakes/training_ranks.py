"""Training scenarios that one process and several ranks run alike, and the program of a rank.

``python -m tests.fakes.training_ranks RANK RANKS DIR`` runs all of them and writes their results.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from conf.sections.training import RoutingRecomputeConfig, RoutingReplayConfig
from runners.training.local import NATIVE
from runners.training.sample import Sample
from runners.training.sharded_policy import join_parts
from runners.training.supervised.step import train_on_examples
from tests.fakes.local_trainer import make_rollouts, make_trainer
from tests.fakes.routing_replay import corrupt, r3
from tests.fakes.routing_rollouts import rollouts as routed_rollouts

GRADIENT = "gradient of "
POLICY, NOISY, LARGE = "policy", "noisy", "large"
"""Directories of the policy, of one with other routers, and of one with millions of parameters, in
that of the results.
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Settings of a trainer, and the number of rollouts of each of its steps."""

    settings: dict[str, Any]
    counts: tuple[int, ...]
    routing: RoutingReplayConfig = NATIVE
    supervised: bool = False
    masked: bool = False
    """The routing of one sample is another's."""
    by_token: bool = False
    """Each token has an advantage of its own, and a teacher's logprob."""
    family: str | None = None
    """Of the policy; None: the tiny mixture of experts."""
    rounded: bool = False
    """Matrix products depend on the rows beside, which are others with several ranks."""

    @property
    def updates_once(self) -> bool:
        """Whether its gradient is one of the same weights, whatever the ranks."""
        return len(self.counts) == 1 and "minibatches" not in self.settings


R2 = RoutingRecomputeConfig(kind="recompute")
TEACHER = {"url": "http://localhost:1", "weight": 0.5, "alone": False, "deadline_s": 1.0}
SEVERAL: dict[str, Any] = {"minibatches": 2, "epochs": 2, "weight_decay": 0.1}
PENALTY: dict[str, Any] = {
    "kl": {"weight": 0.2, "estimator": "k3", "place": "loss"},
    "entropy_bonus": 0.05,
    "aggregation": "token",
    "correction": {"truncate": "token", "cap": 1.01},
}
UNEQUAL: dict[str, Any] = {"tokens_per_microbatch": 40}
"""Positions: some two samples each, so that processes have different numbers of micro-batches."""
MODEL: dict[str, Any] = {"shard": "model"}
SCENARIOS: dict[str, Scenario] = {
    "one update": Scenario({}, (6,), r3()),
    "several updates": Scenario(SEVERAL, (7,)),
    "penalty and bonus": Scenario(PENALTY, (5, 4)),
    "adapters": Scenario({"lora": {"rank": 4}, "learning_rate": 1e-2}, (5, 4)),
    "replay": Scenario({}, (1, 7), r3(shadow_every=2)),
    "replay, masked": Scenario({"minibatches": 2}, (7,), r3(on_fault="mask"), masked=True),
    "turns and a teacher": Scenario(
        {"credit": "turn", "distill": TEACHER, "minibatches": 2}, (6,), by_token=True
    ),
    "bfloat16": Scenario({"precision": "bfloat16"}, (6,), rounded=True),
    "optimizer sharded": Scenario(SEVERAL | UNEQUAL | {"shard": "optimizer"}, (7,)),
    "optimizer sharded, replay": Scenario(
        {"shard": "optimizer", "recompute": True, "precision": "bfloat16"},
        (6, 1), r3(), rounded=True,
    ),
    "model sharded": Scenario(UNEQUAL | MODEL | {"recompute": True}, (6,), r3()),
    "model sharded, several updates": Scenario(SEVERAL | UNEQUAL | MODEL, (7,)),
    "model sharded, fewer samples than ranks": Scenario({"minibatches": 3} | MODEL, (1, 3)),
    "model sharded, penalty and bonus": Scenario(PENALTY | UNEQUAL | MODEL, (5, 4)),
    "model sharded, replay": Scenario(UNEQUAL | MODEL, (1, 7), r3(shadow_every=2)),
    "model sharded, masked": Scenario(
        {"tokens_per_microbatch": 20} | MODEL, (7,), r3(on_fault="mask"), masked=True
    ),
    "model sharded, replay of its own": Scenario({"minibatches": 2} | UNEQUAL | MODEL, (6,), R2),
    "model sharded, examples": Scenario({"recompute": True} | MODEL, (5,), supervised=True),
    "model sharded, bfloat16": Scenario(
        UNEQUAL | MODEL | {"precision": "bfloat16"}, (6,), rounded=True
    ),
    "model sharded, dense": Scenario(
        UNEQUAL | MODEL | {"recompute": True}, (6,), family="qwen3, sliding window"
    ),
    "model sharded, linear attention": Scenario(
        MODEL | {"precision": "bfloat16"}, (1,), family="qwen3_5, multi-modal", rounded=True
    ),
}  # fmt: skip
FAMILIES = {scenario.family for scenario in SCENARIOS.values() if scenario.family is not None}


def run_scenario(
    scenario: Scenario, directory: Path
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Train; return the metrics of each step, with the rollouts that were masked, and the weights
    after the last with the gradients of its last update. Routing comes from the engine in
    ``directory/noisy``.
    """
    policy = directory / (scenario.family or POLICY)
    trainer = make_trainer(policy, routing=scenario.routing, **scenario.settings)
    routed = scenario.routing is not NATIVE
    engine = make_trainer(directory / NOISY if routed else policy)
    steps = []
    for count in scenario.counts:
        made = routed_rollouts(engine, count) if routed else make_rollouts(engine, count)
        if scenario.masked:
            made[2] = [corrupt("random", made[2][0], made[3][0])]
        if scenario.by_token:
            made = [[add_signals(sample) for sample in rollout] for rollout in made]
        if scenario.supervised:
            steps.append(train_on_examples(trainer, [sample for [sample] in made]))
        else:
            steps.append(trainer.step(made) | {"refused": dict(trainer.refused)})
    weights = {name: join_parts(each) for name, each in trainer.weights.trained.items()}
    gradients = {
        f"{GRADIENT}{name}": join_parts(each.grad)
        for name, each in trainer.weights.trained.items()
        if each.grad is not None
    }
    return steps, weights | gradients


def add_signals(sample: Sample) -> Sample:
    """Return a sample whose tokens have advantages of their own and a teacher's logprobs."""
    rng = np.random.default_rng(len(sample.tokens))
    noise = rng.normal(size=(2, len(sample.tokens))).astype(np.float32) * sample.loss_mask
    return replace(sample, token_advantages=noise[0], teacher_logprobs=sample.logprobs + noise[1])


def measure_memory(directory: Path, shard: str) -> dict[str, int]:
    """Shard a policy and make an update; return the number of its parameters, and the bytes that
    tensors of this process hold after each.
    """
    rollouts = make_rollouts(make_trainer(directory / POLICY), 6)
    before = count_held_bytes()
    trainer = make_trainer(directory / LARGE, shard=shard, precision="bfloat16")
    divided = count_held_bytes() - before
    trainer.step(rollouts)
    trained = count_held_bytes() - before
    return {
        "parameters": sum(each.numel() for each in trainer.weights.trained.values()),
        "divided": divided,
        "trained": trained,
    }


def count_held_bytes() -> int:
    """Count the bytes of all tensors of this process, those that share memory once."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    own = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    storages = [each.detach().untyped_storage() for each in own]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def main() -> None:
    """Run every scenario as one rank."""
    rank, ranks, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{directory}/meeting",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=300),
    )
    for name, scenario in SCENARIOS.items():
        steps, weights = run_scenario(scenario, directory)
        place = directory / f"{rank} {name}"
        save_file(weights, place.with_suffix(".safetensors"))
        place.with_suffix(".json").write_text(json.dumps(steps))
    for shard in ("optimizer", "model"):
        found = measure_memory(directory, shard)
        (directory / f"{rank} memory {shard}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

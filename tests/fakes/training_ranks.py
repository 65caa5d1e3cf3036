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
from runners.training.local import NATIVE, LocalTrainer
from runners.training.peers import ProcessPeers, TrainingPeers
from runners.training.sample import Sample
from runners.training.supervised.step import train_on_examples
from tests.fakes.local_trainer import make_rollouts, make_trainer
from tests.fakes.routing_replay import corrupt, r3
from tests.fakes.routing_rollouts import rollouts as routed_rollouts

BUCKET = 4000
"""Numbers: less than some of the policy's parameters have, more than several others together."""
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
SCENARIOS: dict[str, Scenario] = {
    "plain": Scenario({}, (6, 5)),
    "one update": Scenario({}, (6,)),
    "one update, replay": Scenario({}, (6,), r3()),
    "fewer samples than ranks": Scenario({"minibatches": 3}, (1, 3)),
    "several updates": Scenario({"minibatches": 2, "epochs": 2, "weight_decay": 0.1}, (7,)),
    "penalty and bonus": Scenario(
        {
            "kl": {"weight": 0.2, "estimator": "k3", "place": "loss"},
            "entropy_bonus": 0.05,
            "aggregation": "token",
            "correction": {"truncate": "token", "cap": 1.01},
        },
        (5, 4),
    ),
    "adapters": Scenario({"lora": {"rank": 4}, "learning_rate": 1e-2}, (5, 4)),
    "replay": Scenario({}, (7, 5), r3(shadow_every=2)),
    "replay of one alone": Scenario({}, (1, 6), r3(shadow_every=3)),
    "replay, masked": Scenario({"minibatches": 2}, (7,), r3(on_fault="mask"), masked=True),
    "replay, recomputed": Scenario({"minibatches": 2}, (6,), R2),
    "examples": Scenario({}, (5,), supervised=True),
    "turns and a teacher": Scenario(
        {"credit": "turn", "distill": TEACHER, "minibatches": 2}, (6,), by_token=True
    ),
    "bfloat16": Scenario({"precision": "bfloat16"}, (6,), rounded=True),
}
for name in ("several updates", "replay", "bfloat16"):
    divided = SCENARIOS[name].settings | {"shard": "optimizer"}
    SCENARIOS[f"{name}, divided"] = replace(SCENARIOS[name], settings=divided)
UNEQUAL: dict[str, Any] = {"tokens_per_microbatch": 40}
"""Positions: some two samples each, so that processes have different numbers of micro-batches."""
DIVIDED: dict[str, dict[str, Any]] = {
    "one update": UNEQUAL,
    "one update, replay": UNEQUAL | {"recompute": True},
    "fewer samples than ranks": {},
    "several updates": UNEQUAL,
    "penalty and bonus": UNEQUAL,
    "replay": UNEQUAL,
    "replay of one alone": {"recompute": True},
    "replay, masked": {"tokens_per_microbatch": 20, "minibatches": 1},
    "replay, recomputed": UNEQUAL,
    "examples": UNEQUAL | {"recompute": True},
    "bfloat16": UNEQUAL,
}
for name, settings in DIVIDED.items():
    everything = SCENARIOS[name].settings | settings | {"shard": "model"}
    SCENARIOS[f"{name}, model divided"] = replace(SCENARIOS[name], settings=everything)
for name, family, settings in (
    ("dense", "qwen3, sliding window", UNEQUAL | {"recompute": True}),
    ("dense, twice", "qwen3", {}),
    ("shared experts", "glm4_moe", UNEQUAL),
    ("linear attention", "qwen3_5, multi-modal", {"precision": "bfloat16"}),
):
    SCENARIOS[f"{name}, model divided"] = Scenario(
        settings | {"shard": "model"},
        {"dense, twice": (6, 5), "linear attention": (1,)}.get(name, (6,)),
        family=family,
        rounded="precision" in settings,
    )
FAMILIES = {scenario.family for scenario in SCENARIOS.values() if scenario.family is not None}


def run_scenario(
    scenario: Scenario, directory: Path, peers: TrainingPeers | None
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Train; return the metrics of each step, with the rollouts that were masked, and the weights
    after the last with the gradients of its last update. Routing comes from the engine in
    ``directory/noisy``.
    """
    policy = directory / (scenario.family or POLICY)
    trainer = make_trainer(policy, routing=scenario.routing, peers=peers, **scenario.settings)
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
    weights = {name: each.detach() for name, each in trainer.weights.trained.items()}
    weights |= dict(trainer.weights.gather_masters())
    gradients = {
        f"{GRADIENT}{name}": find_gradient(trainer, name, each.grad)
        for name, each in trainer.weights.trained.items()
        if each.grad is not None
    }
    return steps, weights | gradients


def find_gradient(trainer: LocalTrainer, name: str, own: Tensor) -> Tensor:
    """Return a whole gradient, of which a process may have a part."""
    return trainer.weights.gather(name, own) if trainer.config.shard == "model" else own


def add_signals(sample: Sample) -> Sample:
    """Return a sample whose tokens have advantages of their own and a teacher's logprobs."""
    rng = np.random.default_rng(len(sample.tokens))
    noise = rng.normal(size=(2, len(sample.tokens))).astype(np.float32) * sample.loss_mask
    return replace(sample, token_advantages=noise[0], teacher_logprobs=sample.logprobs + noise[1])


def measure_memory(directory: Path, peers: TrainingPeers, precision: str) -> dict[str, int]:
    """Divide a policy and make an update; return the number of its parameters, and the bytes that
    tensors of this process hold after each.
    """
    rollouts = make_rollouts(make_trainer(directory / POLICY), 6)
    before = count_held_bytes()
    trainer = make_trainer(directory / LARGE, peers=peers, shard="model", precision=precision)
    divided = count_held_bytes() - before
    trainer.step(rollouts)
    trained = count_held_bytes() - before
    names = trainer.weights.gather_masters()
    return {
        "parameters": sum(each.numel() for _, each in names),
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
        peers = ProcessPeers(torch.device("cpu"))
        peers.bucket = BUCKET
        steps, weights = run_scenario(scenario, directory, peers)
        place = directory / f"{rank} {name}"
        save_file(weights, place.with_suffix(".safetensors"))
        place.with_suffix(".json").write_text(json.dumps(steps))
    for precision in ("float32", "bfloat16"):
        found = measure_memory(directory, ProcessPeers(torch.device("cpu")), precision)
        (directory / f"{rank} memory {precision}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

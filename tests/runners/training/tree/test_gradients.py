"""The gradient of a prefix tree is that of its samples one by one, in float64 to 1e-9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.sections.training import RoutingRecomputeConfig
from runners.training.local import LocalTrainer
from runners.training.routing.shape import read_routing_shape
from runners.training.sample import Sample
from tests.fakes.float64 import float64
from tests.fakes.local_trainer import make_trainer
from tests.fakes.policies import write_policy
from tests.fakes.routing_replay import r3
from tests.fakes.sample_trees import sample_trees
from tests.fakes.variants import variants

ROUTING: dict[str, dict[str, Any]] = {
    "off": {},
    "rollout": {"routing": r3(alarm_disagreement=1.0, shadow_every=0)},
    "recompute": {"routing": RoutingRecomputeConfig(kind="recompute")},
}
OBJECTIVES: list[dict[str, Any]] = [
    {"loss": "reinforce"},
    {"loss": "ppo", "aggregation": "token", "entropy_bonus": 0.1},
    {"loss": "gspo", "clip_low": 0.99, "clip_high": 99.0, "aggregation": "segment"},
    {"loss": "cispo", "aggregation": "constant", "correction": {"truncate": "sequence"}},
    {"loss": "ppo", "kl": {"weight": 0.3, "estimator": "k3", "place": "loss"}},
    {"loss": "reinforce", "kl": {"weight": 0.3, "estimator": "k2", "place": "reward"}},
]
EXACT = 1e-9
ROUNDED = 1e-6
"""Where logprobs of a first pass are kept as float32 for the second."""


class Pair:
    """A trainer of trees and one of rows, of the same policy in float64."""

    def __init__(self, weights: Path, **changes: Any) -> None:
        options: dict[str, Any] = {"grad_clip": 1e9, "learning_rate": 1e-4} | changes
        self.tree, self.rows = make_trainer(weights, **options), make_trainer(weights, **options)
        assert self.tree.no_tree is None
        self.rows.no_tree = "the reference"
        self.rows.config = self.rows.config.model_copy(update={"tokens_per_microbatch": 1})
        self.start = {name: each.clone() for name, each in self.tree.model.state_dict().items()}

    def step(self, trainer: LocalTrainer, rollouts: list[list[Sample]], most: int) -> torch.Tensor:
        """Return the gradient of a step that starts with the first weights."""
        trainer.model.double()
        trainer.model.set_experts_implementation("eager")  # type: ignore[operator]
        if trainer.reference is not None:
            trainer.reference.double()
        trainer.model.load_state_dict(self.start)
        trainer.model.zero_grad()
        trainer.steps = 0
        if trainer is self.tree:
            trainer.config = trainer.config.model_copy(update={"tokens_per_microbatch": most})
        with float64():
            trainer.step(rollouts)
        weights = trainer.model.parameters()
        return torch.cat([
            (torch.zeros_like(each) if each.grad is None else each.grad).flatten()
            for each in weights
        ])  # fmt: skip

    def compare(self, samples: list[Sample], most: int) -> float:
        """Return how far the gradients are apart, relative to their norm."""
        by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            by_name.setdefault(sample.rollout_id, []).append(sample)
        rollouts = list(by_name.values())
        expected = self.step(self.rows, rollouts, most)
        found = self.step(self.tree, rollouts, most)
        assert expected.norm() > 0
        return float((found - expected).norm() / expected.norm())


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("policies")
    return {
        name: write_policy(name, place / name)
        for name in ("qwen3", "qwen3, sliding window", "qwen3_moe", "glm4_moe")
    }


def check_random_trees(
    family: str, mode: str, recompute: bool, policies: dict[str, Path], examples: int,
    limit: float = EXACT, **changes: Any,
) -> None:  # fmt: skip
    weights = policies[family]
    pair = Pair(weights, recompute=recompute, **ROUTING[mode], **changes)
    shape = read_routing_shape(weights) if mode == "rollout" else None

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(sample_trees(shape=shape, most=6, longest=16), st.integers(1, 70))
    def check(samples: list[Sample], most: int) -> None:
        known = [s.routing.valid.any() for s in samples if s.routing is not None]
        if mode == "rollout" and not any(known):
            return  # refused: not one token came with its routing
        assert pair.compare(samples, most) < limit

    check()


CASES = [
    ("qwen3", "off", False), ("qwen3", "off", True), ("qwen3, sliding window", "off", False),
    ("qwen3_moe", "off", False), ("qwen3_moe", "rollout", True), ("qwen3_moe", "recompute", False),
    ("glm4_moe", "off", True), ("glm4_moe", "rollout", False), ("glm4_moe", "recompute", True),
]  # fmt: skip


@pytest.mark.parametrize(("family", "mode", "recompute"), variants(CASES, CASES[-2:]))
def test_a_tree_has_the_gradient_of_its_samples(
    family: str, mode: str, recompute: bool, policies: dict[str, Path]
) -> None:
    check_random_trees(family, mode, recompute, policies, 6, loss="reinforce")


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("mode", ROUTING)
@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe"])
def test_many_trees_have_the_gradients_of_their_samples(
    family: str, mode: str, recompute: bool, policies: dict[str, Path]
) -> None:
    check_random_trees(family, mode, recompute, policies, 100, loss="reinforce")


@pytest.mark.parametrize(
    "objective", variants(OBJECTIVES, OBJECTIVES[:2]), ids=lambda each: "-".join(map(str, each))
)
def test_every_part_of_the_objective_is_a_prediction_s_own(
    objective: dict[str, Any], policies: dict[str, Path]
) -> None:
    limit = ROUNDED if "kl" in objective else EXACT
    check_random_trees("qwen3", "off", False, policies, 3, limit, **objective)

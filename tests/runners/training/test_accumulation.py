"""A step means the same however its tokens are packed into micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runners.training.local import LocalTrainer
from runners.training.sample import Sample
from tests.fakes.local_trainer import VOCAB, make_trainer
from tests.fakes.tiny_model import write_tiny_model
from tests.fakes.variants import variants

GROUPS = st.lists(st.lists(st.integers(3, 40), max_size=3), min_size=2, max_size=6).filter(
    lambda groups: sum(map(len, groups)) > 1
)
"""Lengths of the samples of each rollout, behind a prompt or not."""
SETTINGS: list[dict[str, Any]] = [
    {},
    {"loss": "gspo", "aggregation": "token"},
    {"loss": "cispo", "aggregation": "segment", "entropy_bonus": 0.01},
    {"aggregation": "constant", "kl": {"weight": 0.1, "estimator": "k3", "place": "loss"}},
    {"correction": {"truncate": "sequence"}, "minibatches": 2},
    {"recompute": True, "minibatches": 2, "epochs": 2},
    {"precision": "bfloat16"},
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("policy"), vocab_size=VOCAB, hidden_size=32, head_dim=8,
        moe_intermediate_size=16, num_experts=4,
    )  # fmt: skip


def make_rollouts(groups: list[list[int]], seed: int) -> list[list[Sample]]:
    """Every second rollout begins with the same prompt."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, VOCAB, 67)
    rollouts = []
    for index, lengths in enumerate(groups):
        samples = []
        for length in lengths:
            own = rng.integers(0, VOCAB, length)
            tokens = np.concatenate([prompt, own] if index % 2 else [own]).astype(np.int32)
            mask = np.arange(len(tokens)) >= len(tokens) - length + 1
            mask &= rng.random(len(tokens)) < 0.8
            mask[-1] = True
            logprobs = np.where(mask, rng.normal(-4.5, 0.3, len(tokens)), 0).astype(np.float32)
            worth = float(rng.normal())
            samples.append(Sample(f"r{index}", tokens, mask, logprobs, worth))
        rollouts.append(samples)
    return rollouts


def run(weights: Path, rollouts: list[list[Sample]], **changes: Any) -> LocalTrainer:
    trainer = make_trainer(weights, grad_clip=1e9, learning_rate=1e-9, **changes)
    trainer.step(rollouts)
    return trainer


@pytest.mark.parametrize("changes", variants(SETTINGS, SETTINGS[:2]), ids=str)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=GROUPS, tokens=st.integers(1, 300), seed=st.integers(0, 99))
def test_the_gradient_does_not_depend_on_the_tokens_of_a_micro_batch(
    weights: Path, changes: dict[str, Any], groups: list[list[int]], tokens: int, seed: int
) -> None:
    """Of the last update; ones before it, with a rate near 0, leave the weights as they are."""
    rollouts = make_rollouts(groups, seed)
    whole = run(weights, rollouts, tokens_per_microbatch=100_000, **changes)
    parts = run(weights, rollouts, tokens_per_microbatch=tokens, **changes)
    tolerance = 0.05 if changes.get("precision") else 1e-4
    pairs = zip(whole.weights.trained.values(), parts.weights.trained.values(), strict=True)
    found = [(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None]
    assert found
    norm = torch.stack([one.norm() for one, _ in found]).norm()
    difference = torch.stack([(one - other).norm() for one, other in found]).norm()
    assert difference <= tolerance * norm + 1e-7
